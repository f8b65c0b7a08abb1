//! Watching directories with inotify. Subdirectories are followed as they appear; between a directory's making and
//! its watch a change can be missed, as with every such tool.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Error, Read, Result};
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
    | libc::IN_DONT_FOLLOW
    | libc::IN_MASK_CREATE;

/// Every watch of a sandbox. Each request has an inotify of its own, so that two can watch one directory.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    requests: HashMap<u32, Request>,
}

#[derive(Debug)]
struct Request {
    inotify: File,
    top: PathBuf,
    recursive: bool,
    directories: HashMap<i32, PathBuf>,
}

impl Watches {
    pub(crate) fn add(&mut self, id: u32, path: &Path, recursive: bool) -> Result<()> {
        let mut request = Request {
            inotify: sys::inotify()?.into(),
            top: path.to_owned(),
            recursive,
            directories: HashMap::new(),
        };
        let free = self.free();
        request.follow(Path::new(""), free)?;
        self.requests.insert(id, request);
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.requests.remove(&id);
    }

    /// What to wait on, one per request.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (u32, &File)> {
        self.requests.iter().map(|(id, request)| (*id, &request.inotify))
    }

    /// What happened in one request's directories.
    pub(crate) fn read(&mut self, id: u32) -> Vec<WatchEvent> {
        let free = self.free();
        self.requests.get_mut(&id).map(|request| request.read(free)).unwrap_or_default()
    }

    fn free(&self) -> usize {
        DIRECTORIES.saturating_sub(self.requests.values().map(|request| request.directories.len()).sum())
    }
}

impl Request {
    /// Watches a directory and, when asked for, those below it.
    fn follow(&mut self, relative: &Path, mut free: usize) -> Result<()> {
        let mut todo = vec![relative.to_owned()];
        while let Some(dir) = todo.pop() {
            if free == 0 {
                return Err(Error::from_raw_os_error(libc::ENOSPC));
            }
            free -= 1;
            let path = self.top.join(&dir);
            let number = sys::inotify_add(&self.inotify, &path, EVENTS)?;
            if self.recursive {
                let below = fs::read_dir(&path).into_iter().flatten().flatten();
                let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                todo.extend(below.map(|entry| dir.join(entry.file_name())));
            }
            self.directories.insert(number, dir);
        }
        Ok(())
    }

    fn read(&mut self, free: usize) -> Vec<WatchEvent> {
        let mut buffer = [0; 8192];
        let length = self.inotify.read(&mut buffer).unwrap_or(0);
        let mut rest = &buffer[..length];
        let mut events = Vec::new();
        while let Some(record) = Record::take(&mut rest) {
            if record.mask & libc::IN_IGNORED != 0 {
                self.directories.remove(&record.number);
                continue;
            }
            let Some(dir) = self.directories.get(&record.number) else { continue };
            let Some(kind) = record.kind() else { continue };
            let relative = dir.join(record.name);
            let appeared = record.mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0;
            if self.recursive && appeared && record.mask & libc::IN_ISDIR != 0 {
                let _ = self.follow(&relative, free); // gone again, or as many as can be
            }
            events.push(WatchEvent { name: relative.to_string_lossy().into_owned(), kind });
        }
        events
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
