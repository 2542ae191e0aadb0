//! A server in a process of its own, an HTTP client that shows every byte, and patience with limits.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_spoolbox");

/// A command of ours that nothing in the tester's environment can change.
pub fn spoolbox() -> Command {
    without_settings(PROGRAM)
}

fn serve(command: &mut Command, spool: &Path, args: &[&str]) {
    command
        .arg("serve")
        .arg(spool)
        .args(["--http", "127.0.0.1:0", "--log-level", "debug"])
        .args(args);
}

fn without_settings(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SPOOLBOX_") {
            command.env_remove(name);
        }
    }
    command
}

/// A running server; killed when it goes out of scope.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub spool: PathBuf,
    log: PathBuf,
    /// Kept for as long as the server runs.
    _dir: TempDir,
}

impl Server {
    /// Serves a spool of its own, which is empty.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spool = dir.path().join("spool");
        fs::create_dir(&spool).unwrap();
        Self::launch(dir, &spool, args, |_| {})
    }

    /// Serves a spool that somebody else made.
    pub fn on(spool: &Path) -> Self {
        Self::launch(tempfile::tempdir().unwrap(), spool, &[], |_| {})
    }

    pub fn launch(
        dir: TempDir,
        spool: &Path,
        args: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = spoolbox();
        serve(&mut command, spool, args);
        prepare(&mut command);
        Self::spawn(dir, command)
    }

    /// Starts the server by another program, which runs what follows its own arguments.
    pub fn launch_through(through: &[&str], dir: TempDir, spool: &Path, args: &[&str]) -> Self {
        let mut command = without_settings(through[0]);
        command.args(&through[1..]).arg(PROGRAM);
        serve(&mut command, spool, args);
        Self::spawn(dir, command)
    }

    fn spawn(dir: TempDir, mut command: Command) -> Self {
        let log = dir.path().join("log");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (lines, announced) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut address = None;
        let mut path = None;
        loop {
            let Ok(line) = announced.recv_timeout(PATIENCE) else {
                let _ = child.kill();
                panic!(
                    "the server did not start: {}",
                    fs::read_to_string(&log).unwrap()
                );
            };
            match line.split_once(' ') {
                Some(("spool", spool)) => path = Some(PathBuf::from(spool)),
                Some(("http", http)) => address = Some(http.parse().unwrap()),
                _ if line == "ready" => break,
                _ => panic!("unexpected line {line:?}"),
            }
        }
        Self {
            child,
            address: address.expect("the server tells its address"),
            spool: path.expect("the server tells its spool"),
            log,
            _dir: dir,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Asks the server to stop, and waits until it has.
    pub fn stop(self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.end()
    }

    /// Waits until a server that was told to stop has done so.
    pub fn end(mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn request(&self, method: &str, path: &str) -> Response {
        self.send(method, path, &[], b"")
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path)
    }

    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        send(self.address, method, path, headers, body)
    }

    /// The list of a mailbox.
    pub fn list(&self, mailbox: &str) -> Vec<Value> {
        let response = self.get(&format!("/api/v1/mailbox/{mailbox}"));
        assert_eq!(response.status, 200, "{response:?}");
        response
            .json()
            .as_array()
            .expect("a list is an array")
            .clone()
    }

    /// The ids in a mailbox.
    pub fn ids(&self, mailbox: &str) -> Vec<String> {
        let id = |entry: &Value| entry["id"].as_str().unwrap().to_owned();
        self.list(mailbox).iter().map(id).collect()
    }

    /// One message.
    pub fn message(&self, mailbox: &str, id: &str) -> Value {
        let response = self.get(&format!("/api/v1/mailbox/{mailbox}/{id}"));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    /// Puts a message there the way a careful script would: written elsewhere, then renamed.
    pub fn drop_message(&self, mailbox: &str, id: &str, content: impl AsRef<[u8]>) {
        drop_message(&self.spool, mailbox, id, content);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}", self.log());
        }
    }
}

pub fn drop_message(spool: &Path, mailbox: &str, id: &str, content: impl AsRef<[u8]>) {
    fs::create_dir_all(spool.join(mailbox)).unwrap();
    let part = spool.join(mailbox).join(format!(".{id}.part"));
    fs::write(&part, content).unwrap();
    fs::rename(part, spool.join(mailbox).join(format!("{id}.eml"))).unwrap();
}

/// Sets a file's date of last change.
pub fn set_date(path: impl AsRef<Path>, date: std::time::SystemTime) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(date).unwrap();
}

pub fn mail(subject: &str) -> String {
    format!(
        "From: Ann <ann@example.com>\nTo: bob@example.com\nSubject: {subject}\n\nThis is {subject}.\n"
    )
}

/// An answer, byte for byte.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let same = |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(same)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|err| panic!("{err}: {self:?}"))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        request += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    request += "\r\n";
    let mut bytes = request.into_bytes();
    bytes.extend_from_slice(body);
    raw(address, &bytes)
}

/// Sends bytes and reads one answer up to the end of the connection.
pub fn raw(address: SocketAddr, request: &[u8]) -> Response {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer but {:?}", String::from_utf8_lossy(&answer)));
    let head = std::str::from_utf8(&answer[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    };
    Response {
        status,
        headers: lines.map(header).collect(),
        body: answer[end + 4..].to_vec(),
    }
}

/// Waits for a child, but not for ever.
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command to its end with input.
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|err| panic!("{command:?}: {err}"));
    // A command that refuses does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Waits until something is so, and fails with what it was instead.
#[track_caller]
pub fn eventually<T: std::fmt::Debug>(within: Duration, mut look: impl FnMut() -> Result<(), T>) {
    let deadline = Instant::now() + within;
    loop {
        let Err(instead) = look() else { return };
        assert!(
            Instant::now() < deadline,
            "not within {within:?}: {instead:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A small generator of reproducible randomness (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Whether this process may do anything, so that permissions mean nothing to it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A user without rights, for servers that must not be allowed everything.
pub const NOBODY: u32 = 65_534;
