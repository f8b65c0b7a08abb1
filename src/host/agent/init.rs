//! The agent's loop: the first process of a sandbox starts programs, carries their bytes, reaps, and serves files.
//!
//! One thread, nothing waits: what cannot be sent is queued, and while something is queued no program is read
//! from. A program's output stops at the credit that its reader has given, so programs do not hold each other up.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use super::files;
use super::protocol::{
    CHUNK, Exit, FIRST_WINDOW, Failure, FromAgent, Hello, LEAST, MAX_FRAME, Start, ToAgent, WINDOW, charge,
};
use super::watch::Watches;
use crate::host::agent::Stdin;
use crate::host::jail::limits::{Scan, Seen};
use crate::host::jail::{Usage, policy, sys};
use crate::host::kernel;

/// Answers that may wait for the host before requests wait too.
const OUTBOX: usize = 64;
/// Output that is still passed on after a program ended, in case something that it started goes on writing.
const AFTER_EXIT: usize = 1 << 20;
const SCAN_EVERY: Duration = Duration::from_millis(50);
/// Scans between two reports of what is in use.
const SCANS_PER_REPORT: u32 = 20;
/// How long a port of the sandbox may take to answer. Nothing else happens meanwhile; on a loopback it takes
/// microseconds, unless the listener does not accept.
const CONNECT_PATIENCE: Duration = Duration::from_millis(50);

/// Where in the file system the agent serves.
#[derive(Debug)]
pub(crate) struct Place {
    /// Home directory of the programs.
    pub(crate) home: PathBuf,
    /// Directory for temporary files.
    pub(crate) tmp: PathBuf,
    /// Whether it is the first process of its own namespace.
    own_namespace: bool,
    /// Whether nothing of what is shared can be watched by looking at this file system.
    own_files: bool,
}

/// What the first process has opened before it locked itself in.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) place: Place,
    /// What looks at the other processes.
    pub(crate) scan: Option<Scan>,
    /// How soon this process is ended when memory runs out.
    pub(crate) oom_score: File,
    /// An inotify, where there is one to have.
    pub(crate) watcher: Option<OwnedFd>,
    /// What keeps the signals of programs from this process, where no namespace does.
    pub(crate) scope: Option<OwnedFd>,
}

impl Place {
    /// In a root of one's own; `own_files` when even shared trees are shown through file systems of its own.
    pub(crate) fn inside(own_files: bool) -> Self {
        Self { home: policy::HOME.into(), tmp: "/tmp".into(), own_namespace: true, own_files }
    }

    /// In a directory of the machine.
    pub(crate) fn at(scratch: &Path) -> Self {
        Self { home: scratch.join("home"), tmp: scratch.join("tmp"), own_namespace: false, own_files: false }
    }

    /// Whether this is a root of our own.
    pub(crate) fn is_own(&self) -> bool {
        self.own_namespace
    }

    /// Whether a directory may be watched: one that is the sandbox's own.
    pub(crate) fn may_watch(&self, path: &Path) -> bool {
        self.own_files
            || path.canonicalize().is_ok_and(|path| {
                let own = [&self.home, &self.tmp].into_iter().any(|own| path.starts_with(own));
                own || self.own_namespace && policy::WORK_DIRS.iter().any(|dir| path.starts_with(dir))
            })
    }

    /// A path of the host's, on this file system: relative ones start at the home directory, and where there is no
    /// root of our own, the usual names lead to their replacements.
    pub(crate) fn path(&self, asked: &str) -> PathBuf {
        let path = self.home.join(asked.strip_prefix("~/").unwrap_or(asked));
        if self.own_namespace || path.starts_with(&self.home) || path.starts_with(&self.tmp) {
            return path;
        }
        let usual = [(policy::HOME, &self.home), ("/tmp", &self.tmp)];
        let here =
            usual.iter().find_map(|(usual, here)| path.strip_prefix(usual).ok().map(|rest| here.join(rest)));
        here.unwrap_or(path)
    }
}

/// Serves until the host goes away.
pub(crate) fn run(socket: OwnedFd, nice: i32, tools: Tools) {
    let Tools { place, scan, oom_score, watcher, scope } = tools;
    let Ok(children) = sys::child_events() else { return };
    if sys::set_nonblocking(&socket, true).is_err() {
        return;
    }
    sys::ignore(libc::SIGPIPE);
    sys::ignore(libc::SIGXFSZ);
    let mut agent = Agent {
        socket,
        children: children.into(),
        place,
        nice,
        scan,
        oom_score,
        next_scan: Instant::now(),
        scans: 0,
        reported: Usage::default(),
        memory_kills: 0,
        programs: BTreeMap::new(),
        watches: Watches::on(watcher),
        scope,
        paused: false,
        listener: None,
        accepting: VecDeque::new(),
        outbox: VecDeque::new(),
        buffer: vec![0; MAX_FRAME],
    };
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let hello = Hello { home: text(&agent.place.home), tmp: text(&agent.place.tmp) };
    agent.say(0, FromAgent::Ready(hello));
    while agent.turn().is_ok() {}
    if !agent.place.own_namespace {
        for program in agent.programs.values().filter(|program| program.socket.is_none()) {
            let _ = sys::kill(-program.pid, libc::SIGKILL);
        }
    }
}

/// The inputs and outputs of a program.
struct Streams {
    inputs: [Input; 2],
    outputs: Vec<(Stream, File)>,
    /// The program's own end of its control socket.
    theirs: Option<UnixStream>,
}

/// Our ends of a terminal and a control socket. The other streams are there once the program has been started.
fn streams(start: &Start, command: &mut Command) -> io::Result<Streams> {
    let mut inputs = [Input::default(), Input::default()];
    let mut outputs = Vec::new();
    let mut theirs = None;
    if let Some((cols, rows)) = start.pty {
        let (main, peer) = sys::open_terminal(cols, rows)?;
        command.stdin(peer.try_clone()?).stdout(peer.try_clone()?).stderr(peer);
        inputs[STDIN].file = Some(File::from(main.try_clone()?));
        outputs.push((Stream::Pty, File::from(main)));
    } else {
        let stdin = if start.stdin == Stdin::Pipe { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    if start.control {
        let (ours, other) = UnixStream::pair()?;
        inputs[CONTROL].file = Some(File::from(OwnedFd::from(ours.try_clone()?)));
        outputs.push((Stream::Control, File::from(OwnedFd::from(ours))));
        theirs = Some(other);
    }
    Ok(Streams { inputs, outputs, theirs })
}

/// The host is gone.
struct HostGone;

struct Agent {
    socket: OwnedFd,
    children: File,
    place: Place,
    nice: i32,
    scan: Option<Scan>,
    /// How soon this process is ended when memory runs out; what it forks inherits the value.
    oom_score: File,
    next_scan: Instant,
    scans: u32,
    reported: Usage,
    memory_kills: u32,
    programs: BTreeMap<u32, Program>,
    watches: Watches,
    /// The control of signals that programs enter before they are executed.
    scope: Option<OwnedFd>,
    /// Programs are stopped, and stopped again should one of them go on.
    paused: bool,
    /// The proxy port.
    listener: Option<TcpListener>,
    /// Ids that wait for a connection to it.
    accepting: VecDeque<u32>,
    outbox: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

/// A program, or a connection: one that has a socket and no process.
struct Program {
    pid: i32,
    socket: Option<TcpStream>,
    /// The process that goes on in its place when it ends.
    successor: Option<i32>,
    status: Option<ExitStatus>,
    outputs: Vec<(Stream, File)>,
    inputs: [Input; 2],
    /// Output that may be sent, as it is charged.
    credit: usize,
    after_exit: usize,
    /// Memory kills in the sandbox when it was started.
    memory_kills: u32,
}

impl Program {
    /// A connection of which nothing more can come in either direction.
    fn is_closed(&self) -> bool {
        self.socket.is_some() && self.outputs.is_empty() && self.inputs[STDIN].file.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
    Pty,
    Control,
}

/// What goes to a program: [`STDIN`] or [`CONTROL`].
#[derive(Default)]
struct Input {
    file: Option<File>,
    queue: VecDeque<Piece>,
    close: bool,
}

/// What is left of a piece of input, and what the host is sent once nothing is left.
struct Piece {
    bytes: Bytes,
    charge: usize,
}

const STDIN: usize = 0;
const CONTROL: usize = 1;

/// Why poll returned.
#[derive(Clone, Copy)]
enum Ready {
    Socket,
    Children,
    Listener,
    Watches,
    Output(u32, Stream),
    Input(u32, usize),
}

impl Agent {
    fn turn(&mut self) -> Result<(), HostGone> {
        let (mut fds, ready) = self.interests();
        if sys::poll(&mut fds, self.until_scan()).is_err() {
            return Err(HostGone);
        }
        for (fd, ready) in fds.iter().zip(ready).filter(|(fd, _)| fd.revents != 0) {
            match ready {
                Ready::Socket => {
                    if fd.revents & libc::POLLOUT != 0 {
                        self.send_queued()?;
                    }
                    if fd.revents & !libc::POLLOUT != 0 {
                        self.receive()?;
                    }
                }
                Ready::Children => self.reap(),
                Ready::Listener => self.accept(),
                Ready::Watches => {
                    for (id, event) in self.watches.read() {
                        self.say(id, FromAgent::Changed(event));
                    }
                }
                Ready::Output(id, stream) => self.carry_output(id, stream),
                Ready::Input(id, which) => self.carry_input(id, which),
            }
        }
        self.finish_ended();
        self.scan_when_due();
        Ok(())
    }

    fn interests(&self) -> (Vec<sys::PollFd>, Vec<Ready>) {
        let calm = self.outbox.is_empty();
        let mut fds = vec![
            sys::poll_fd(&self.socket, self.outbox.len() < OUTBOX, !calm),
            sys::poll_fd(&self.children, true, false),
        ];
        let mut ready = vec![Ready::Socket, Ready::Children];
        if let Some(listener) = self.listener.as_ref().filter(|_| calm && !self.accepting.is_empty()) {
            fds.push(sys::poll_fd(listener, true, false));
            ready.push(Ready::Listener);
        }
        if let Some(inotify) = self.watches.descriptor().filter(|_| calm) {
            fds.push(sys::poll_fd(inotify, true, false));
            ready.push(Ready::Watches);
        }
        for (id, program) in &self.programs {
            for (stream, file) in program.outputs.iter().filter(|_| calm && program.credit >= LEAST) {
                fds.push(sys::poll_fd(file, true, false));
                ready.push(Ready::Output(*id, *stream));
            }
            for (which, input) in program.inputs.iter().enumerate() {
                if let Some(file) = input.file.as_ref().filter(|_| !input.queue.is_empty()) {
                    fds.push(sys::poll_fd(file, false, true));
                    ready.push(Ready::Input(*id, which));
                }
            }
        }
        (fds, ready)
    }

    // ------------------------------------------------------------ the host

    fn say(&mut self, id: u32, message: FromAgent) {
        self.outbox.push_back(message.encode(id));
        if self.outbox.len() == 1 {
            // An error shows again when the socket is next read from.
            let _ = self.send_queued();
        }
    }

    fn send_queued(&mut self) -> Result<(), HostGone> {
        while let Some(message) = self.outbox.front() {
            match sys::send(self.socket.as_fd(), message, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(HostGone),
            }
        }
        Ok(())
    }

    /// One message.
    #[expect(clippy::too_many_lines, reason = "an arm for each kind of message")]
    fn receive(&mut self) -> Result<(), HostGone> {
        let length = match sys::receive(self.socket.as_fd(), &mut self.buffer) {
            Ok((0, _)) => return Err(HostGone),
            Ok((length, _)) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(HostGone),
        };
        let Ok((id, message)) = ToAgent::decode(&self.buffer[..length]) else { return Err(HostGone) };
        match message {
            ToAgent::Start(start) => match self.start(&start) {
                Ok(program) => {
                    let pid = program.pid;
                    self.programs.insert(id, program);
                    self.say(id, FromAgent::Started { pid });
                }
                Err(error) => {
                    let name = start.argv.first().map_or("nothing", String::as_str);
                    self.say(id, FromAgent::Failed(Failure::new(format!("starting {name}"), &error)));
                }
            },
            ToAgent::Stdin(bytes) => self.queue_input(id, STDIN, bytes),
            ToAgent::Control(bytes) => self.queue_input(id, CONTROL, bytes),
            ToAgent::CloseStdin => self.close_stdin(id),
            ToAgent::Signal { signal, group } => {
                let lives = |program: &&Program| program.status.is_none() && program.socket.is_none();
                if let Some(program) = self.programs.get(&id).filter(lives) {
                    let _ = sys::kill(if group { -program.pid } else { program.pid }, signal);
                }
            }
            ToAgent::SignalAll { signal, hold } => {
                if [libc::SIGSTOP, libc::SIGCONT].contains(&signal) {
                    self.paused = hold && signal == libc::SIGSTOP;
                }
                self.signal_all(signal);
            }
            ToAgent::Successor(pid) => {
                if let Some(program) = self.programs.get_mut(&id) {
                    program.successor = (pid > 1).then_some(pid);
                }
            }
            ToAgent::Resize { cols, rows } => {
                let outputs = self.programs.get(&id).map(|program| &program.outputs[..]).unwrap_or_default();
                if let Some((_, terminal)) = outputs.iter().find(|(stream, _)| *stream == Stream::Pty) {
                    let _ = sys::resize_terminal(terminal, cols, rows);
                }
            }
            ToAgent::Taken(count) => {
                if let Some(program) = self.programs.get_mut(&id) {
                    program.credit = (program.credit + count as usize).min(WINDOW);
                }
            }
            ToAgent::Listen => {
                let answers = match self.listen() {
                    Ok(port) => {
                        let port = Bytes::copy_from_slice(&port.to_le_bytes());
                        vec![FromAgent::Bytes(port), FromAgent::Done]
                    }
                    Err(error) => vec![FromAgent::Failed(Failure::new("opening the proxy port", &error))],
                };
                answers.into_iter().for_each(|answer| self.say(id, answer));
            }
            ToAgent::Accept => self.accepting.push_back(id),
            ToAgent::Connect { port } => {
                let connected = self.connect(port);
                self.begin_connection(id, connected);
            }
            ToAgent::HangUp => {
                self.accepting.retain(|waiting| *waiting != id);
                if self.programs.get(&id).is_some_and(|program| program.socket.is_some()) {
                    self.programs.remove(&id);
                    self.say(id, FromAgent::Exited(Exit { code: None, signal: None, oom: false }));
                }
            }
            ToAgent::Call(call) => {
                let answers = files::answer(&self.place, &mut self.watches, id, call);
                answers.into_iter().for_each(|answer| self.say(id, answer));
            }
            ToAgent::Write(write, bytes) => {
                let answer = files::write(&self.place, &write, &bytes);
                self.say(id, answer);
            }
        }
        Ok(())
    }

    fn signal_all(&self, signal: i32) {
        if self.place.own_namespace {
            // Everything but this process, in one step: no one can start something in between.
            let _ = sys::kill(-1, signal);
            return;
        }
        let lives = |program: &&Program| program.status.is_none() && program.socket.is_none();
        for program in self.programs.values().filter(lives) {
            let _ = sys::kill(-program.pid, signal);
        }
    }

    // ------------------------------------------------------------ connections

    /// Opens the proxy port; where there is no network of our own it would be the machine's.
    fn listen(&mut self) -> io::Result<u16> {
        if !self.place.own_namespace {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                listener.set_nonblocking(true)?;
                listener
            }
        };
        let port = listener.local_addr()?.port();
        self.listener = Some(listener);
        Ok(port)
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let accepted = match listener.accept() {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
                return;
            }
            accepted => accepted,
        };
        if let Some(id) = self.accepting.pop_front() {
            self.begin_connection(id, accepted.map(|(socket, _)| socket));
        }
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        if !self.place.own_namespace {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let [v4, v6] =
            [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
        TcpStream::connect_timeout(&v4, CONNECT_PATIENCE)
            .or_else(|_| TcpStream::connect_timeout(&v6, CONNECT_PATIENCE))
    }

    fn begin_connection(&mut self, id: u32, socket: io::Result<TcpStream>) {
        let begun = socket.and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let half = || socket.try_clone().map(|half| File::from(OwnedFd::from(half)));
            let inputs = [Input { file: Some(half()?), ..Input::default() }, Input::default()];
            Ok(Program {
                successor: None,
                pid: 0,
                status: None,
                outputs: vec![(Stream::Stdout, half()?)],
                inputs,
                socket: Some(socket),
                credit: FIRST_WINDOW,
                after_exit: 0,
                memory_kills: self.memory_kills,
            })
        });
        match begun {
            Ok(connection) => {
                self.programs.insert(id, connection);
                self.say(id, FromAgent::Started { pid: 0 });
            }
            Err(error) => self.say(id, FromAgent::Failed(Failure::new("opening a connection", &error))),
        }
    }

    // ------------------------------------------------------------ programs

    fn start(&self, start: &Start) -> io::Result<Program> {
        let (name, arguments) = start.argv.split_first().ok_or(ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).env_clear().envs(start.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(start.cwd.as_deref().map_or(self.place.home.clone(), |cwd| self.place.path(cwd)));

        let Streams { mut inputs, mut outputs, theirs } = streams(start, &mut command)?;
        let plan = sys::BeforeExec {
            control: theirs.as_ref().map(AsRawFd::as_raw_fd),
            terminal: start.pty.is_some(),
            nice: self.nice,
            scope: self.scope.as_ref().map(AsRawFd::as_raw_fd),
        };
        sys::before_exec(&mut command, plan);
        if let Some(builtin) = kernel::program(&start.argv) {
            sys::run_instead(&mut command, builtin, start.argv.clone());
        }
        // Programs go first when memory runs out. They inherit the score, because between fork and execution they
        // hide as this process does and could not write it.
        let _ = self.oom_score.write_at(b"500", 0);
        let spawned = command.spawn();
        let _ = self.oom_score.write_at(b"0", 0);
        let mut child = spawned?;

        inputs[STDIN].file =
            inputs[STDIN].file.take().or(child.stdin.take().map(|pipe| OwnedFd::from(pipe).into()));
        outputs.extend(child.stdout.take().map(|pipe| (Stream::Stdout, OwnedFd::from(pipe).into())));
        outputs.extend(child.stderr.take().map(|pipe| (Stream::Stderr, OwnedFd::from(pipe).into())));
        for file in
            outputs.iter().map(|(_, file)| file).chain(inputs.iter().filter_map(|input| input.file.as_ref()))
        {
            sys::set_nonblocking(file, true)?;
        }
        Ok(Program {
            pid: child.id() as i32,
            socket: None,
            successor: None,
            status: None,
            outputs,
            inputs,
            credit: FIRST_WINDOW,
            after_exit: 0,
            memory_kills: self.memory_kills,
        })
    }

    /// Passes output on. Before control bytes goes all output that was there before them.
    fn carry_output(&mut self, id: u32, stream: Stream) {
        let mut most = CHUNK;
        if stream == Stream::Control {
            // Looked at before the output is: what the program writes from here on may be either, and waits for the
            // next time. One byte is requested when there is none, because that is how an end shows.
            most = self.waiting_bytes(id, stream).max(1);
            let Some(program) = self.programs.get(&id) else { return };
            let streams: Vec<Stream> = program.outputs.iter().map(|(stream, _)| *stream).collect();
            for other in streams.into_iter().filter(|other| *other != Stream::Control) {
                let mut waiting = self.waiting_bytes(id, other);
                while waiting > 0 {
                    match self.carry(id, other, waiting) {
                        0 => return,
                        count => waiting -= count,
                    }
                }
            }
        }
        self.carry(id, stream, most);
    }

    fn waiting_bytes(&self, id: u32, stream: Stream) -> usize {
        let outputs = self.programs.get(&id).map(|program| &program.outputs[..]).unwrap_or_default();
        outputs.iter().find(|(which, _)| *which == stream).map_or(0, |(_, file)| sys::readable_bytes(file))
    }

    /// Passes one piece on and returns its length in bytes; 0 also without credit or with a slow host.
    fn carry(&mut self, id: u32, stream: Stream, most: usize) -> usize {
        let Some(program) = self.programs.get_mut(&id) else { return 0 };
        let room = program.credit.min(most).min(CHUNK);
        let Some(index) = program.outputs.iter().position(|(which, _)| *which == stream) else { return 0 };
        if room == 0 || program.credit < LEAST || !self.outbox.is_empty() {
            return 0;
        }
        match program.outputs[index].1.read(&mut self.buffer[..room]) {
            Ok(0) => {
                program.outputs.remove(index);
                if program.socket.is_some() {
                    self.say(id, FromAgent::Ended);
                }
            }
            Ok(count) => {
                program.credit -= charge(&self.buffer[..count]);
                if program.status.is_some() {
                    program.after_exit += count;
                }
                let bytes = Bytes::copy_from_slice(&self.buffer[..count]);
                let message = match stream {
                    Stream::Stdout => FromAgent::Stdout(bytes),
                    Stream::Stderr => FromAgent::Stderr(bytes),
                    Stream::Pty => FromAgent::Pty(bytes),
                    Stream::Control => FromAgent::Control(bytes),
                };
                self.say(id, message);
                return count;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => {
                program.outputs.remove(index); // a terminal whose program is gone
                if program.socket.is_some() {
                    program.inputs[STDIN] = Input::default(); // a connection that was reset
                }
            }
        }
        0
    }

    fn queue_input(&mut self, id: u32, which: usize, bytes: Bytes) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let charge = charge(&bytes);
        if program.inputs[which].file.is_none() {
            self.took(id, which, charge);
        } else {
            program.inputs[which].queue.push_back(Piece { bytes, charge });
            self.carry_input(id, which);
        }
    }

    fn close_stdin(&mut self, id: u32) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        if program.outputs.iter().any(|(stream, _)| *stream == Stream::Pty) {
            // No one was charged for it.
            program.inputs[STDIN].queue.push_back(Piece { bytes: Bytes::from_static(b"\x04"), charge: 0 });
        } else {
            program.inputs[STDIN].close = true;
        }
        self.carry_input(id, STDIN);
    }

    fn carry_input(&mut self, id: u32, which: usize) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let input = &mut program.inputs[which];
        let mut took = 0;
        while let (Some(file), Some(Piece { bytes, charge })) = (&mut input.file, input.queue.front_mut()) {
            match file.write(bytes) {
                Ok(count) => {
                    bytes.advance(count);
                    if bytes.is_empty() {
                        took += *charge;
                        input.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // No one reads it any more: swallow, so that the writer does not wait forever.
                    took += input.queue.drain(..).map(|piece| piece.charge).sum::<usize>();
                    input.file = None;
                }
            }
        }
        if input.close && input.queue.is_empty() && input.file.take().is_some() {
            // Anyone who reads a connection learns the end by this, since its socket is still read from.
            let _ = program.socket.as_ref().map(|socket| socket.shutdown(Shutdown::Write));
        }
        self.took(id, which, took);
    }

    fn took(&mut self, id: u32, which: usize, count: usize) {
        if count > 0 {
            let count = count as u32;
            self.say(
                id,
                if which == STDIN { FromAgent::TookStdin(count) } else { FromAgent::TookControl(count) },
            );
        }
    }

    fn reap(&mut self) {
        // How many records are waiting does not matter: signals of several children may have become one.
        while self.children.read(&mut self.buffer[..512]).is_ok_and(|count| count == 512) {}
        while let Ok(Some((pid, status))) = sys::reap(-1, false) {
            if let Some(program) =
                self.programs.values_mut().find(|program| program.pid == pid && program.status.is_none())
            {
                program.status = Some(ExitStatus::from_raw(status));
            }
        }
    }

    /// Reports programs that have ended and whose output has been passed on.
    fn finish_ended(&mut self) {
        let ended: Vec<u32> = self
            .programs
            .iter()
            .filter(|(_, program)| program.status.is_some() || program.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            let Some(program) = self.programs.get(&id) else { continue };
            let waiting = program.outputs.iter().filter(|(_, file)| sys::is_readable(file));
            let streams: Vec<Stream> = waiting.map(|(stream, _)| *stream).collect();
            for stream in streams {
                self.carry_output(id, stream);
            }
            let Some(program) = self.programs.get(&id) else { continue };
            let rest = program.outputs.iter().any(|(_, file)| sys::is_readable(file));
            if rest && program.after_exit < AFTER_EXIT {
                continue;
            }
            let status = program.status.unwrap_or_default();
            let killed = status.signal() == Some(libc::SIGKILL) || status.code() == Some(128 + libc::SIGKILL);
            let oom = killed && self.memory_kills > program.memory_kills;
            let exit = Exit { code: status.code(), signal: status.signal(), oom };
            if self.hand_over(id) {
                self.say(id, FromAgent::Replaced(exit));
            } else {
                self.programs.remove(&id);
                self.say(id, FromAgent::Exited(exit));
            }
        }
    }

    /// Makes the successor of a program that has ended the program, if there is one: a living child of this process, so
    /// that its end will show. What was on the way to the program is dropped.
    fn hand_over(&mut self, id: u32) -> bool {
        let others: Vec<i32> = self.programs.values().map(|program| program.pid).collect();
        let Some(program) = self.programs.get_mut(&id) else { return false };
        let successor =
            program.successor.take().filter(|pid| !others.contains(pid) && sys::is_living_child(*pid));
        let Some(successor) = successor else { return false };
        (program.pid, program.status, program.after_exit) = (successor, None, 0);
        program.memory_kills = self.memory_kills;
        let dropped = program.inputs[CONTROL].queue.drain(..).map(|piece| piece.charge).sum();
        self.took(id, CONTROL, dropped);
        true
    }

    // ------------------------------------------------------------ memory

    fn until_scan(&self) -> i32 {
        if self.scan.is_none() && !self.paused {
            return -1;
        }
        self.next_scan.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
    }

    /// How long until the next look: often where it holds memory or a pause.
    fn scan_every(&self) -> Duration {
        let often = self.paused || self.scan.as_ref().is_some_and(Scan::holds_memory);
        if often { SCAN_EVERY } else { SCAN_EVERY * SCANS_PER_REPORT }
    }

    fn scan_when_due(&mut self) {
        if Instant::now() < self.next_scan {
            return;
        }
        self.scans += 1;
        self.next_scan = Instant::now() + self.scan_every();
        if self.paused {
            // A timer of a program's own may have let it go on. Stopping throws away what else would.
            self.signal_all(libc::SIGSTOP);
        }
        let Some(scan) = self.scan.as_mut() else { return };
        let each_second = !scan.holds_memory() || self.scans.is_multiple_of(SCANS_PER_REPORT);
        let mut seen = if scan.holds_memory() { scan.look() } else { Seen::default() };
        if each_second {
            seen.excess.extend(scan.look_at_slab());
        }
        for pid in seen.excess {
            self.memory_kills += 1;
            self.say(0, FromAgent::MemoryKill);
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        if each_second
            && seen.usage != Usage::default()
            && seen.usage != self.reported
            && self.outbox.is_empty()
        {
            self.reported = seen.usage;
            self.say(0, FromAgent::Usage(seen.usage));
        }
    }
}
