//! The command line: subcommands, flags, and what becomes of errors.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::config::{BaseUrl, Config, Listen, Origin};
use crate::error::{Error, IoContext};
use crate::http::Limits;
use crate::policy::Naming;
use crate::server;
use crate::spool::{Options, Spool};

/// A mail spool that you can read with `ls` and over HTTP at once.
///
/// Each mailbox is a directory of <id>.eml files. The server answers the Inbucket REST API v1 over
/// those files: drop one in by any means, and the very next request lists it.
#[derive(Parser)]
#[command(name = "spoolbox", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  spoolbox serve                                 serve ./spool on http://127.0.0.1:9000
  spoolbox serve /var/mail/test --http 127.0.0.1:0
  spoolbox deliver alice < message.eml           store a message, print its id
  curl http://127.0.0.1:9000/api/v1/mailbox/alice";

#[derive(Subcommand)]
enum Command {
    Serve(Serve),
    Deliver(Deliver),
}

/// Serve a spool over HTTP.
///
/// Once it listens, the server prints `spool PATH`, `http HOST:PORT` and `ready` on stdout, a line
/// each; logs go to stderr. SIGINT or SIGTERM stops it in order.
#[derive(Args)]
struct Serve {
    /// The spool's directory; created when it does not exist
    #[arg(
        value_name = "SPOOL",
        env = "SPOOLBOX_SPOOL",
        default_value = "./spool"
    )]
    spool: PathBuf,

    /// Where to answer HTTP: HOST:PORT (port 0 picks a free one), or `off`
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "SPOOLBOX_HTTP",
        default_value = "127.0.0.1:9000"
    )]
    http: Listen,

    /// Where to take mail by SMTP; not in this version yet, so only `off` is accepted
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "SPOOLBOX_SMTP",
        default_value = "off"
    )]
    smtp: Listen,

    /// Where to give mail out by POP3; not in this version yet, so only `off` is accepted
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "SPOOLBOX_POP3",
        default_value = "off"
    )]
    pop3: Listen,

    /// The public address of the server, with or without a path, for links to attachments;
    /// without it links use the Host of each request
    #[arg(long, value_name = "URL", env = "SPOOLBOX_BASE_URL")]
    base_url: Option<BaseUrl>,

    /// How `Ann+shop@example.com` becomes a mailbox: local → ann, full → ann@example.com,
    /// domain → example.com. A directory of exactly the name that is asked for always wins
    #[arg(
        long,
        value_name = "local|full|domain",
        env = "SPOOLBOX_NAMING",
        default_value_t
    )]
    naming: Naming,

    /// An origin whose web pages may use the API, like http://localhost:3000; may be repeated
    #[arg(
        long,
        value_name = "ORIGIN",
        env = "SPOOLBOX_ALLOW_ORIGIN",
        value_delimiter = ','
    )]
    allow_origin: Vec<Origin>,

    /// How much to log: error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        env = "SPOOLBOX_LOG_LEVEL",
        default_value = "info"
    )]
    log_level: tracing::Level,

    /// How to log
    #[arg(long, env = "SPOOLBOX_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Store a message from standard input, and print its id.
///
/// No server needs to be running, and a running one lists the message with the next request. Exit
/// codes are those of sysexits.h, as mail systems expect them: 0 stored, 64 wrong usage, 65 no
/// message, 73 the spool cannot be written, 75 try again.
#[derive(Args)]
struct Deliver {
    /// The spool's directory, which must exist
    #[arg(
        long,
        value_name = "DIR",
        env = "SPOOLBOX_SPOOL",
        default_value = "./spool"
    )]
    spool: PathBuf,

    /// The envelope sender, recorded as Return-Path
    #[arg(short = 'f', value_name = "SENDER")]
    sender: Option<String>,

    /// How an address becomes a mailbox: local, full or domain
    #[arg(
        long,
        value_name = "local|full|domain",
        env = "SPOOLBOX_NAMING",
        default_value_t
    )]
    naming: Naming,

    /// The mailbox, or an address
    #[arg(value_name = "MAILBOX-OR-ADDRESS")]
    mailbox: String,
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            let _ = err.print();
            let help = matches!(
                err.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            // Mail systems bounce on 1 and 2.
            let delivering = std::env::args_os()
                .nth(1)
                .is_some_and(|word| word == "deliver");
            return match (help, delivering) {
                (true, _) => ExitCode::SUCCESS,
                (false, true) => ExitCode::from(sysexits::USAGE),
                (false, false) => ExitCode::from(2),
            };
        }
    };
    match cli.command {
        Command::Serve(args) => match args.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => {
                let _ = writeln!(Stderr, "spoolbox: {err:#}");
                ExitCode::FAILURE
            }
        },
        Command::Deliver(args) => match args.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure { code, why }) => {
                let _ = writeln!(Stderr, "spoolbox deliver: {why}");
                ExitCode::from(code)
            }
        },
    }
}

impl Serve {
    fn run(self) -> anyhow::Result<()> {
        for (flag, service, value) in [
            ("--smtp", "SMTP", &self.smtp),
            ("--pop3", "POP3", &self.pop3),
        ] {
            if *value != Listen::Off {
                let why = format!(
                    "{flag} {value} cannot be served: this version has no {service} yet. Leave {flag} off; \
                     mail comes in as files, or by `spoolbox deliver`"
                );
                Cli::command().error(ErrorKind::InvalidValue, why).exit();
            }
        }
        start_logging(self.log_level, self.log_format);
        let config = Config {
            spool: self.spool,
            http: self.http,
            base_url: self.base_url,
            naming: self.naming,
            allow_origin: self.allow_origin,
            limits: Limits::default(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .max_blocking_threads(600)
            .build()
            .context("cannot start the server's threads")?;
        let result = runtime.block_on(async {
            let signal = stop_signal().context("cannot listen for signals")?;
            server::run(config, signal).await
        });
        // Whoever still waits for a slow client must not keep the process.
        runtime.shutdown_background();
        result
    }
}

/// Resolves on SIGINT or SIGTERM.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn start_logging(level: tracing::Level, format: LogFormat) {
    use std::io::IsTerminal;
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(|| Stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

/// Standard error, as far as there is one: a full disk or a closed pipe behind it must not get in
/// the way of the mail.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = std::io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The exit codes of sysexits.h that a delivery agent needs.
mod sysexits {
    pub const USAGE: u8 = 64;
    pub const DATAERR: u8 = 65;
    pub const CANTCREAT: u8 = 73;
    pub const TEMPFAIL: u8 = 75;
}

struct Failure {
    code: u8,
    why: String,
}

impl From<Error> for Failure {
    fn from(err: Error) -> Self {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let code = match &err {
            Error::Name(_) => sysexits::USAGE,
            Error::NotADirectory { .. } => sysexits::CANTCREAT,
            Error::Io { source, .. }
                if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
            {
                sysexits::CANTCREAT
            }
            _ => sysexits::TEMPFAIL,
        };
        Failure {
            code,
            why: err.with_reason(),
        }
    }
}

impl Deliver {
    fn run(self) -> Result<(), Failure> {
        let fail = |code, why: &str| Failure {
            code,
            why: why.into(),
        };
        let sender = self
            .sender
            .as_deref()
            .map(|sender| sender.trim_matches(['<', '>']));
        if sender
            .is_some_and(|sender| sender.contains(|c: char| c.is_control() || c == '<' || c == '>'))
        {
            return Err(fail(
                sysexits::USAGE,
                "-f: the sender must be an address on one line",
            ));
        }
        let spool = Spool::open(&self.spool, Options::default()).map_err(|err| {
            let missing = err
                .io()
                .is_some_and(|err| err.kind() == std::io::ErrorKind::NotFound);
            let mut failure = Failure::from(err);
            if missing {
                failure.why +=
                    "; the spool must exist: make the directory, or start `spoolbox serve` on it";
            }
            failure
        })?;
        let name = self.naming.resolve(&spool, &self.mailbox)?;

        // Looked at before anything is created: an empty message leaves no trace.
        let mut input = std::io::stdin().lock();
        let mut head = Vec::new();
        let read = input.by_ref().take(64 * 1024).read_to_end(&mut head);
        read.during("read", "standard input")?;
        if head.is_empty() {
            return Err(fail(
                sysexits::DATAERR,
                "standard input is empty: there is no message to store",
            ));
        }
        let mut delivery = spool.mailbox(&name).deliver()?;
        let line_end = if head
            .split(|&b| b == b'\n')
            .next()
            .is_some_and(|line| line.ends_with(b"\r"))
        {
            "\r\n"
        } else {
            "\n"
        };
        let trace = sender
            .map(|sender| format!("Return-Path: <{sender}>{line_end}"))
            .unwrap_or_default();
        delivery
            .write_all(trace.as_bytes())
            .and_then(|()| delivery.write_all(&head))
            .and_then(|()| std::io::copy(&mut input, &mut delivery))
            .during("store", spool.path().join(name.as_str()))?;
        let id = delivery.commit()?;
        if let Err(err) = writeln!(std::io::stdout(), "{id}") {
            // It is stored: the mail system must not send it again.
            let _ = writeln!(
                Stderr,
                "spoolbox deliver: stored as {id}, but that cannot be printed: {err}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
