//! Watching directories with inotify. Subdirectories are followed as they appear; between a directory's making and
//! its watch a change can be missed, as with every such tool.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Error, Read, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{WatchEvent, WatchKind};
use crate::host::jail::sys;

/// Directories that can be watched at once in one sandbox.
const DIRECTORIES: usize = 4096;

const EVENTS: u32 = libc::IN_CREATE
    | libc::IN_MODIFY
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_ONLYDIR
    | libc::IN_DONT_FOLLOW;

/// Every watch of a sandbox, on one inotify: instances are few, and programs need some as well.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    inotify: Option<File>,
    requests: HashMap<u32, Request>,
    /// By the kernel's number, who watches it and what it is called there. Two may watch one directory.
    directories: HashMap<i32, Vec<(u32, PathBuf)>>,
}

#[derive(Debug)]
struct Request {
    top: PathBuf,
    recursive: bool,
}

impl Watches {
    /// Watches through this descriptor; without one nothing can be watched.
    pub(crate) fn on(inotify: Option<OwnedFd>) -> Self {
        Self { inotify: inotify.map(File::from), ..Self::default() }
    }

    pub(crate) fn add(&mut self, id: u32, path: &Path, recursive: bool) -> Result<()> {
        self.requests.insert(id, Request { top: path.to_owned(), recursive });
        self.follow(id, Path::new("")).inspect_err(|_| self.remove(id))
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.requests.remove(&id);
        let inotify = self.inotify.as_ref();
        self.directories.retain(|number, watchers| {
            watchers.retain(|(watcher, _)| *watcher != id);
            if watchers.is_empty()
                && let Some(inotify) = inotify
            {
                let _ = sys::inotify_remove(inotify, *number); // gone already when its directory is
            }
            !watchers.is_empty()
        });
    }

    /// What to wait on, while something is watched.
    pub(crate) fn descriptor(&self) -> Option<&File> {
        self.inotify.as_ref().filter(|_| !self.requests.is_empty())
    }

    /// What happened, and whom it concerns.
    pub(crate) fn read(&mut self) -> Vec<(u32, WatchEvent)> {
        let mut buffer = [0; 8192];
        let length = self.inotify.as_mut().and_then(|inotify| inotify.read(&mut buffer).ok()).unwrap_or(0);
        let mut rest = &buffer[..length];
        let mut events = Vec::new();
        while let Some(record) = Record::take(&mut rest) {
            if record.mask & libc::IN_IGNORED != 0 {
                self.directories.remove(&record.number);
                continue;
            }
            let Some(kind) = record.kind() else { continue };
            let watchers = self.directories.get(&record.number).cloned().unwrap_or_default();
            let appeared = record.mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0;
            for (id, dir) in watchers {
                let relative = dir.join(record.name);
                let recursive = self.requests.get(&id).is_some_and(|request| request.recursive);
                if recursive && appeared && record.mask & libc::IN_ISDIR != 0 {
                    let _ = self.follow(id, &relative); // gone again, or as many as can be
                }
                events.push((id, WatchEvent { name: relative.to_string_lossy().into_owned(), kind }));
            }
        }
        events
    }

    /// Watches a directory and, when asked for, those below it.
    fn follow(&mut self, id: u32, relative: &Path) -> Result<()> {
        let Some(request) = self.requests.get(&id) else { return Ok(()) };
        let inotify = self.inotify.as_ref().ok_or(Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let mut todo = vec![relative.to_owned()];
        while let Some(dir) = todo.pop() {
            if self.directories.len() >= DIRECTORIES {
                return Err(Error::from_raw_os_error(libc::ENOSPC));
            }
            let path = request.top.join(&dir);
            let number = sys::inotify_add(inotify, &path, EVENTS)?;
            if request.recursive {
                let below = fs::read_dir(&path).into_iter().flatten().flatten();
                let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                todo.extend(below.map(|entry| dir.join(entry.file_name())).take(DIRECTORIES));
            }
            let watchers = self.directories.entry(number).or_default();
            if !watchers.iter().any(|(watcher, _)| *watcher == id) {
                watchers.push((id, dir));
            }
        }
        Ok(())
    }
}

/// One `struct inotify_event`.
struct Record<'a> {
    number: i32,
    mask: u32,
    name: &'a OsStr,
}

impl<'a> Record<'a> {
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let (number, after) = rest.split_first_chunk()?;
        let (mask, after) = after.split_first_chunk()?;
        let (_cookie, after) = after.split_first_chunk::<4>()?;
        let (length, after) = after.split_first_chunk()?;
        let (name, after) = after.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        *rest = after;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Self {
            number: i32::from_ne_bytes(*number),
            mask: u32::from_ne_bytes(*mask),
            name: OsStr::from_bytes(name),
        })
    }

    fn kind(&self) -> Option<WatchKind> {
        [
            (libc::IN_CREATE, WatchKind::Create),
            (libc::IN_MODIFY, WatchKind::Write),
            (libc::IN_DELETE, WatchKind::Remove),
            (libc::IN_MOVED_FROM, WatchKind::Rename),
            (libc::IN_MOVED_TO, WatchKind::Create),
            (libc::IN_ATTRIB, WatchKind::Chmod),
        ]
        .iter()
        .find(|(bit, _)| self.mask & bit != 0)
        .map(|(_, kind)| *kind)
    }
}
