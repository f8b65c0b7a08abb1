//! File requests, carried out inside the sandbox as its user, so that no link leads anywhere that its programs
//! could not go themselves.
//!
//! Only regular files are read and written: a pipe would wait forever, and files in `/proc` are doors to processes.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::init::Place;
use super::protocol::{CHUNK, Call, Failure, FromAgent, MAX_FRAME, Write};
use super::watch::Watches;
use super::{FileInfo, FileKind, LIST_BYTES_MAX, LIST_MAX, READ_MAX};
use crate::host::jail::sys;

/// Carries a request out: all its answers.
pub(crate) fn answer(place: &Place, watches: &mut Watches, id: u32, call: Call) -> Vec<FromAgent> {
    match call {
        Call::Stat { path } => one(info(&place.path(&path)), "looking at", &path),
        Call::List { path, depth } => finish(list(&place.path(&path), depth), "listing", &path),
        Call::MakeDir { path } => finish(make_dir(&place.path(&path)), "making directory", &path),
        Call::Rename { from, to } => {
            let renamed =
                with_parents(&place.path(&to)).and_then(|()| fs::rename(place.path(&from), place.path(&to)));
            finish(renamed.map(|()| vec![]), "renaming", &from)
        }
        Call::Remove { path } => {
            finish(remove(place, &place.path(&path)).map(|()| vec![]), "removing", &path)
        }
        Call::Read { path, offset, len } => finish(read(&place.path(&path), offset, len), "reading", &path),
        Call::Watch { path, recursive } => {
            let at = place.path(&path);
            let watched = match at.exists() && !place.may_watch(&at) {
                true => Err(Error::from_raw_os_error(libc::EACCES)),
                false => watches.add(id, &at, recursive),
            };
            finish(watched.map(|()| vec![]), "watching", &path)
        }
        Call::Unwatch => {
            watches.remove(id);
            vec![]
        }
    }
}

/// Writes a piece of a file.
pub(crate) fn write(place: &Place, write: &Write, bytes: &[u8]) -> FromAgent {
    let path = place.path(&write.path);
    let written = || {
        if write.truncate {
            with_parents(&path)?;
        }
        let mut options = OpenOptions::new();
        let file = regular(&path, options.write(true).create(write.truncate))?;
        if write.truncate {
            file.set_len(0)?;
        }
        file.write_all_at(bytes, write.offset)
    };
    match written() {
        Ok(()) => FromAgent::Done,
        Err(error) => failed(&error, "writing", &write.path),
    }
}

fn one(result: Result<FileInfo>, doing: &str, path: &str) -> Vec<FromAgent> {
    finish(result.map(|info| vec![FromAgent::Entries(vec![info])]), doing, path)
}

fn finish(result: Result<Vec<FromAgent>>, doing: &str, path: &str) -> Vec<FromAgent> {
    match result {
        Ok(mut answers) => {
            answers.push(FromAgent::Done);
            answers
        }
        Err(error) => vec![failed(&error, doing, path)],
    }
}

fn failed(error: &Error, doing: &str, path: &str) -> FromAgent {
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        ErrorKind::WriteZero => libc::ENOSPC,
        ErrorKind::PermissionDenied => libc::EACCES,
        _ => libc::EINVAL,
    });
    FromAgent::Failed(Failure { doing: format!("{doing} {path}"), errno })
}

/// Opens a regular file without ever waiting for the other end of something else.
fn regular(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(Error::from_raw_os_error(libc::EISDIR));
    }
    if !kind.is_file() || sys::is_on_proc(&file)? {
        return Err(Error::from_raw_os_error(libc::EACCES));
    }
    Ok(file)
}

fn info(path: &Path) -> Result<FileInfo> {
    let metadata = fs::symlink_metadata(path)?;
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Dir,
        kind if kind.is_symlink() => FileKind::Link,
        _ => FileKind::Other,
    };
    let target = if kind == FileKind::Link { fs::read_link(path).ok() } else { None };
    Ok(FileInfo {
        name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        path: path.to_string_lossy().into_owned(),
        kind,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        // A program can set any time, of which the last ones do not fit.
        modified_ms: metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000),
        target: target.map(|target| target.to_string_lossy().into_owned()),
    })
}

fn list(path: &Path, depth: u32) -> Result<Vec<FromAgent>> {
    let mut found = Vec::new();
    let mut room = LIST_BYTES_MAX;
    let mut level = vec![path.to_owned()];
    let mut first = true;
    for _ in 0..depth {
        if level.is_empty() || found.len() >= LIST_MAX || room == 0 {
            break;
        }
        let mut next = Vec::new();
        for dir in level {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if first => return Err(error),
                Err(_) => continue, // vanished, or not readable
            };
            first = false;
            for entry in entries.flatten().take(LIST_MAX - found.len()) {
                let Ok(info) = info(&entry.path()) else { continue };
                let Some(left) = room.checked_sub(info.text_bytes()) else {
                    room = 0;
                    break;
                };
                room = left;
                if info.kind == FileKind::Dir {
                    next.push(entry.path());
                }
                found.push(info);
            }
        }
        level = next;
        level.sort();
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(in_messages(found))
}

/// Cuts a list so that each piece fits into a message: JSON makes a byte at most six.
fn in_messages(found: Vec<FileInfo>) -> Vec<FromAgent> {
    let mut messages = Vec::new();
    let mut entries = Vec::new();
    let mut size = 0;
    for info in found {
        let longest = 256 + 6 * info.text_bytes();
        if size + longest > MAX_FRAME - 16 && !entries.is_empty() {
            messages.push(FromAgent::Entries(std::mem::take(&mut entries)));
            size = 0;
        }
        size += longest;
        entries.push(info);
    }
    messages.push(FromAgent::Entries(entries));
    messages
}

fn make_dir(path: &Path) -> Result<Vec<FromAgent>> {
    let new = !path.is_dir();
    fs::create_dir_all(path)?;
    Ok(vec![FromAgent::Bytes(Bytes::from_static(if new { b"new" } else { b"old" }))])
}

fn with_parents(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn remove(place: &Place, path: &Path) -> Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true if place.is_own() => remove_tree(path),
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// Removes a directory of any depth: what is two levels down is moved up until there is nothing, so that no path grows and
/// no descriptor is held for each level. A link that takes a directory's place meanwhile is followed, which is why this is for
/// a file system of our own.
fn remove_tree(top: &Path) -> Result<()> {
    // A program that goes on making what is removed here is not followed forever.
    const STEPS: u32 = 1_000_000;
    let mut steps = 0;
    let mut names = 0_u32;
    loop {
        let mut dirs = Vec::new();
        each_in(top, &mut steps, STEPS, |path| {
            dirs.push(path);
            Ok(())
        })?;
        if dirs.is_empty() {
            return fs::remove_dir(top);
        }
        for dir in dirs {
            each_in(&dir, &mut steps, STEPS, |below| {
                if fs::remove_dir(&below).is_ok() {
                    return Ok(());
                }
                names += 1;
                fs::rename(&below, top.join(format!(".removing-{names}-{}", std::process::id())))
            })?;
            fs::remove_dir(&dir)?;
        }
    }
}

/// Removes the files of a directory and hands out its directories.
fn each_in(
    dir: &Path,
    steps: &mut u32,
    most: u32,
    mut below: impl FnMut(PathBuf) -> Result<()>,
) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        *steps += 1;
        if *steps > most {
            return Err(Error::from_raw_os_error(libc::ENOTEMPTY));
        }
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => below(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn read(path: &Path, offset: u64, len: u64) -> Result<Vec<FromAgent>> {
    let file = regular(path, OpenOptions::new().read(true))?;
    let mut answers = Vec::new();
    let mut left = len.min(READ_MAX as u64) as usize;
    let mut at = offset;
    while left > 0 {
        let mut piece = vec![0; left.min(CHUNK)];
        let count = file.read_at(&mut piece, at)?;
        if count == 0 {
            break;
        }
        piece.truncate(count);
        answers.push(FromAgent::Bytes(piece.into()));
        left -= count;
        at += count as u64;
    }
    Ok(answers)
}
