//! `filesystem.Filesystem`: looking at, moving and watching files. Their contents go through `/files`.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Json, Router};
use chrono::DateTime;
use futures::{StreamExt, stream};
use http::HeaderMap;

use super::rpc::{self, Answer, Failed, Messages};
use super::{USER, check_user, home_path};
use crate::host::agent::{FileInfo, FileKind, WatchEvent, WatchKind};
use crate::host::sandbox::Sandbox;
use crate::host::watchers::WatchersFull;
use crate::wire::connect::{Code, RpcError};
use crate::wire::envd::{
    self, Empty, EntriesResponse, EntryInfo, EntryResponse, FileEvent, FileEventType, FileType,
    ListDirRequest, MoveRequest, PathRequest, WatchRequest, WatchResponse, Watcher, WatcherEvents,
};

type Box = Extension<Arc<Sandbox>>;

/// Looks along a path before it is given up: at the links that the kernel follows, and at what they lead to.
const MAX_LINKS: usize = 41;
/// Steps along links that one answer takes: programs decide how many links there are, and each step is a question to the
/// sandbox. What is left is described as the links that they are.
const MAX_STEPS: usize = 1024;

pub(super) fn router() -> Router {
    use envd::filesystem::*;
    Router::new()
        .route(STAT, post(stat))
        .route(MAKE_DIR, post(make_dir))
        .route(MOVE, post(rename))
        .route(LIST_DIR, post(list_dir))
        .route(REMOVE, post(remove))
        .route(WATCH_DIR, post(watch_dir))
        .route(CREATE_WATCHER, post(create_watcher))
        .route(GET_WATCHER_EVENTS, post(get_watcher_events))
        .route(REMOVE_WATCHER, post(remove_watcher))
}

async fn stat(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<EntryResponse> {
    check_user(&headers)?;
    let PathRequest { path } = rpc::message(body).await?;
    let path = home_path(sandbox.agent.home(), &path);
    Ok(Json(EntryResponse { entry: entry(&sandbox, &path).await? }))
}

async fn make_dir(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<EntryResponse> {
    check_user(&headers)?;
    let PathRequest { path } = rpc::message(body).await?;
    let path = home_path(sandbox.agent.home(), &path);
    if let Ok(info) = follow(&sandbox, &path).await {
        return Err(Failed(match info.kind {
            FileKind::Dir => RpcError::new(Code::AlreadyExists, format!("directory already exists: {path}")),
            _ => RpcError::new(
                Code::InvalidArgument,
                format!("path already exists but it is not a directory: {path}"),
            ),
        }));
    }
    let is_new = sandbox.agent.make_dir(&path).await.map_err(rpc::refused)?;
    if !is_new {
        return Err(Failed(RpcError::new(Code::AlreadyExists, format!("directory already exists: {path}"))));
    }
    Ok(Json(EntryResponse { entry: entry(&sandbox, &path).await? }))
}

async fn rename(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<EntryResponse> {
    check_user(&headers)?;
    let MoveRequest { source, destination } = rpc::message(body).await?;
    let home = sandbox.agent.home();
    let (source, destination) = (home_path(home, &source), home_path(home, &destination));
    sandbox.agent.rename(&source, &destination).await.map_err(rpc::refused)?;
    Ok(Json(EntryResponse { entry: entry(&sandbox, &destination).await? }))
}

async fn list_dir(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<EntriesResponse> {
    check_user(&headers)?;
    let ListDirRequest { path, depth } = rpc::message(body).await?;
    let path = home_path(sandbox.agent.home(), &path);
    let info = follow(&sandbox, &path).await?;
    if info.kind != FileKind::Dir {
        return Err(Failed(RpcError::new(Code::InvalidArgument, format!("path is not a directory: {path}"))));
    }
    let found = sandbox.agent.list_dir(&info.path, depth.max(1)).await.map_err(rpc::refused)?;
    let mut entries = Vec::with_capacity(found.len());
    let mut steps = MAX_STEPS;
    for info in found.iter() {
        entries.push(entry_of(&sandbox, info.clone(), &mut steps).await);
    }
    Ok(Json(EntriesResponse { entries }))
}

async fn remove(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<Empty> {
    check_user(&headers)?;
    let PathRequest { path } = rpc::message(body).await?;
    let path = home_path(sandbox.agent.home(), &path);
    match sandbox.agent.remove(&path).await.map_err(rpc::refused) {
        Ok(()) => Ok(Json(Empty {})),
        Err(error) if error.code == Code::NotFound => Ok(Json(Empty {})),
        Err(error) => Err(Failed(error)),
    }
}

async fn watch_dir(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Response {
    let interval = rpc::keepalive_interval(&headers);
    let messages = async {
        check_user(&headers)?;
        let request: WatchRequest = rpc::only_envelope(body).await?;
        let path = watched_dir(&sandbox, &request).await?;
        let changes = sandbox.agent.watch(&path, request.recursive).await.map_err(rpc::refused)?;
        let with_entry = request.include_entry.unwrap_or(false);
        let state = (changes, Arc::clone(&sandbox), path, with_entry);
        let rest = stream::unfold(state, async |(mut changes, sandbox, path, with_entry)| {
            let change = changes.recv().await?;
            let mut steps = MAX_LINKS;
            let event = file_event(&sandbox, &path, &change, with_entry, &mut steps).await;
            Some((Ok(WatchResponse::Filesystem(event.into())), (changes, sandbox, path, with_entry)))
        });
        let messages: Messages<WatchResponse> =
            stream::once(async { Ok(WatchResponse::Start(Empty {})) }).chain(rest).boxed();
        Ok(messages)
    };
    rpc::stream_answer(messages.await, WatchResponse::Keepalive(Empty {}), interval)
}

async fn create_watcher(Extension(sandbox): Box, headers: HeaderMap, body: Body) -> Answer<Watcher> {
    check_user(&headers)?;
    let request: WatchRequest = rpc::message(body).await?;
    let path = watched_dir(&sandbox, &request).await?;
    let changes = sandbox.agent.watch(&path, request.recursive).await.map_err(rpc::refused)?;
    let with_entry = request.include_entry.unwrap_or(false);
    let id = sandbox
        .watchers
        .add(path, with_entry, changes)
        .map_err(|full: WatchersFull| RpcError::new(Code::ResourceExhausted, full.to_string()))?;
    Ok(Json(Watcher { watcher_id: id }))
}

async fn get_watcher_events(Extension(sandbox): Box, body: Body) -> Answer<WatcherEvents> {
    let Watcher { watcher_id } = rpc::message(body).await?;
    let drained = sandbox.watchers.drain(&watcher_id).ok_or_else(|| no_watcher(&watcher_id))?;
    let mut events = Vec::with_capacity(drained.changes.len());
    let mut steps = MAX_STEPS;
    for change in drained.changes {
        // What a change concerns is looked up, which is a step as well.
        let with_entry = drained.with_entry && steps > 0;
        steps = steps.saturating_sub(usize::from(with_entry));
        events.push(file_event(&sandbox, &drained.path, &change, with_entry, &mut steps).await);
    }
    Ok(Json(WatcherEvents { events }))
}

async fn remove_watcher(Extension(sandbox): Box, body: Body) -> Answer<Empty> {
    let Watcher { watcher_id } = rpc::message(body).await?;
    match sandbox.watchers.remove(&watcher_id) {
        true => Ok(Json(Empty {})),
        false => Err(Failed(no_watcher(&watcher_id))),
    }
}

fn no_watcher(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("watcher with id {id} not found"))
}

async fn watched_dir(sandbox: &Sandbox, request: &WatchRequest) -> Result<String, RpcError> {
    let path = home_path(sandbox.agent.home(), &request.path);
    let info = follow(sandbox, &path).await?;
    match info.kind {
        FileKind::Dir => Ok(info.path),
        _ => Err(RpcError::new(Code::InvalidArgument, format!("path {path} is not a directory"))),
    }
}

async fn file_event(
    sandbox: &Sandbox,
    dir: &str,
    change: &WatchEvent,
    with_entry: bool,
    steps: &mut usize,
) -> FileEvent {
    let kind = match change.kind {
        WatchKind::Create => FileEventType::Create,
        WatchKind::Write => FileEventType::Write,
        WatchKind::Remove => FileEventType::Remove,
        WatchKind::Rename => FileEventType::Rename,
        WatchKind::Chmod => FileEventType::Chmod,
    };
    let entry = match with_entry {
        // A removed entry has none.
        true => entry_within(sandbox, &format!("{dir}/{}", change.name), steps).await.ok(),
        false => None,
    };
    FileEvent { name: change.name.clone(), kind, entry }
}

async fn entry(sandbox: &Sandbox, path: &str) -> Result<EntryInfo, RpcError> {
    let mut steps = MAX_LINKS;
    entry_within(sandbox, path, &mut steps).await
}

async fn entry_within(sandbox: &Sandbox, path: &str, steps: &mut usize) -> Result<EntryInfo, RpcError> {
    let info = sandbox.agent.stat(path).await.map_err(rpc::refused)?;
    Ok(entry_of(sandbox, info, steps).await)
}

/// As envd has it, a link is described by what it leads to, under its own name, as far as there are `steps` left.
async fn entry_of(sandbox: &Sandbox, info: FileInfo, steps: &mut usize) -> EntryInfo {
    let end = match info.kind {
        FileKind::Link if *steps > 0 => follow_within(sandbox, &info.path, steps).await.ok(),
        _ => None,
    };
    let kind = match (info.kind, end.as_ref().map(|end| end.kind)) {
        (FileKind::Link, None) => FileType::Symlink,
        (_, Some(FileKind::File)) | (FileKind::File, _) => FileType::File,
        (_, Some(FileKind::Dir)) | (FileKind::Dir, _) => FileType::Directory,
        _ => FileType::Unspecified,
    };
    let home = sandbox.agent.home();
    let is_own = info.path.starts_with(home) || info.path.starts_with("/tmp");
    let owner = if is_own { USER } else { "root" };
    let mode = end.as_ref().map_or(info.mode, |end| end.mode) & 0o7777;
    EntryInfo {
        name: info.name,
        file_type: kind,
        path: info.path,
        size: i64::try_from(info.size).unwrap_or(i64::MAX),
        mode,
        permissions: permissions(info.kind, info.mode),
        owner: owner.to_owned(),
        group: owner.to_owned(),
        modified_time: DateTime::from_timestamp_millis(info.modified_ms),
        symlink_target: end.map(|end| end.path).or(info.target),
        metadata: Default::default(),
    }
}

/// What a path leads to in the end. Links are walked by name only, which is enough to describe them; anyone who opens a
/// path leaves that to the kernel inside.
pub(super) async fn follow(sandbox: &Sandbox, path: &str) -> Result<FileInfo, RpcError> {
    let mut steps = MAX_LINKS;
    follow_within(sandbox, path, &mut steps).await
}

async fn follow_within(sandbox: &Sandbox, path: &str, steps: &mut usize) -> Result<FileInfo, RpcError> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS.min(*steps) {
        *steps -= 1;
        let info = sandbox.agent.stat(&path).await.map_err(rpc::refused)?;
        match &info.target {
            Some(target) if info.kind == FileKind::Link => path = beside(&info.path, target),
            _ => return Ok(info),
        }
    }
    Err(RpcError::new(Code::InvalidArgument, format!("too many links at {path}")))
}

/// The path that a link's text means: absolute, or relative to the directory of the link.
fn beside(link: &str, target: &str) -> String {
    if target.starts_with('/') {
        return target.to_owned();
    }
    let dir = link.rsplit_once('/').map_or("", |(dir, _)| dir);
    let mut parts: Vec<&str> = dir.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Mode bits as `ls -l` writes them, with Go's `L` for a link.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::File | FileKind::Other => '-',
        FileKind::Dir => 'd',
        FileKind::Link => 'L',
    };
    let bits = (0..9).map(|bit| if mode & (0o400 >> bit) == 0 { '-' } else { ['r', 'w', 'x'][bit % 3] });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_clients_expect_them() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Dir, 0o40751), "drwxr-x--x");
        assert_eq!(permissions(FileKind::Link, 0o777), "Lrwxrwxrwx");
    }

    #[test]
    fn a_link_is_read_relative_to_its_directory() {
        assert_eq!(beside("/a/b/link", "c"), "/a/b/c");
        assert_eq!(beside("/a/b/link", "../c/./d"), "/a/c/d");
        assert_eq!(beside("/a/b/link", "/c"), "/c");
        assert_eq!(beside("/link", "../../../etc"), "/etc");
    }
}
