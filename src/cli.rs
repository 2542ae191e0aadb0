//! The command line: subcommands, flags, and what becomes of errors.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::check::Report;
use crate::config::{Config, Layers, LogFormat, SETTINGS, Source};
use crate::error::{Error, IoContext};
use crate::policy::Naming;
use crate::server;
use crate::spool::{Options, Spool};

const ABOUT: &str = "A mail spool that you can read with `ls` and over HTTP at once";

const LONG_ABOUT: &str = "A mail spool that you can read with `ls` and over HTTP at once.

Each mailbox is a directory of <id>.eml files. The server answers the Inbucket REST API v1 over those \
files: drop one in by any means, and the very next request lists it.";

const EXAMPLES: &str = "\
Examples:
  spoolbox serve                                 serve ./spool on http://127.0.0.1:9000
  spoolbox serve /var/mail/test --http 127.0.0.1:0
  spoolbox deliver alice < message.eml           store a message, print its id
  spoolbox check                                 compare indexes and files, name strays
  curl http://127.0.0.1:9000/api/v1/mailbox/alice";

const SERVE: &str = "Serve a spool over HTTP.

Once it listens, the server prints `spool PATH`, `http HOST:PORT` and `ready` on stdout, a line each; logs go \
to stderr. SIGINT or SIGTERM stops it in order. Every setting can be given as a flag, as an environment \
variable, or under the flag's name in a TOML file; flags come first, the file last.";

/// The whole command line. The flags of `serve` are the settings, made from their list.
fn command() -> Command {
    let mut serve = Command::new("serve")
        .about("Serve a spool over HTTP")
        .long_about(SERVE);
    for setting in SETTINGS {
        let default = if setting.default.is_empty() {
            "none"
        } else {
            setting.default
        };
        let arg = Arg::new(setting.key)
            .value_name(setting.value)
            .env(setting.env)
            .help(format!("{} [default: {default}]", setting.help));
        serve = serve.arg(match setting.key {
            "spool" => arg,
            "allow-origin" => arg.long(setting.key).action(ArgAction::Append),
            _ => arg.long(setting.key),
        });
    }
    serve = serve
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .env("SPOOLBOX_CONFIG")
                .help("A TOML file with settings"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help(
                    "Print the effective settings as TOML, each with where it came from, and exit",
                ),
        );
    let deliver = Deliver::augment_args(Command::new("deliver"));
    let check = Check::augment_args(Command::new("check"));
    Command::new("spoolbox")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve)
        .subcommand(deliver)
        .subcommand(check)
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
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
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
                (false, false) => ExitCode::from(USAGE),
            };
        }
    };
    match matches.subcommand() {
        Some(("serve", matches)) => serve(matches),
        Some(("deliver", matches)) => deliver(matches),
        Some(("check", matches)) => check(matches),
        _ => ExitCode::from(USAGE),
    }
}

/// Check a spool: compare every index with its files, and name what is not mail.
///
/// Nothing is changed without --fix. Exit code 0 means that all is well or mended: what is not mail, and
/// mail that came damaged, is named but does not count. 1 means that something can be mended, or that
/// something cannot be read.
#[derive(Args)]
struct Check {
    /// The spool's directory
    #[arg(
        value_name = "SPOOL",
        env = "SPOOLBOX_SPOOL",
        default_value = "./spool"
    )]
    spool: PathBuf,

    /// Rebuild indexes that are wrong, and remove what deliveries left behind
    #[arg(long)]
    fix: bool,

    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

fn check(matches: &ArgMatches) -> ExitCode {
    start_logging(tracing::Level::ERROR, LogFormat::Text);
    let checked = Check::from_arg_matches(matches)
        .map_err(|err| err.to_string())
        .and_then(|args| {
            let spool =
                Spool::open(&args.spool, Options::default()).map_err(|err| err.with_reason())?;
            let report =
                Report::of(&spool, args.fix, !args.json).map_err(|err| err.with_reason())?;
            let out = if args.json {
                report.json(&spool)
            } else {
                report.text()
            };
            let _ = std::io::stdout().write_all(out.as_bytes());
            Ok(report.is_well())
        });
    match checked {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            complain(why);
            ExitCode::FAILURE
        }
    }
}

/// Wrong usage, but for `deliver`.
const USAGE: u8 = 2;

fn complain(what: impl std::fmt::Display) {
    let _ = writeln!(Stderr, "spoolbox: {what}");
}

fn serve(matches: &ArgMatches) -> ExitCode {
    let layers = match layers(matches) {
        Ok(layers) => layers,
        Err(why) => {
            complain(why);
            return ExitCode::from(USAGE);
        }
    };
    let config = match layers.check() {
        Ok(config) => config,
        Err(why) => {
            complain(format_args!(
                "{why}\n\nFor more information, try 'spoolbox serve --help'."
            ));
            return ExitCode::from(USAGE);
        }
    };
    if matches.get_flag("print-config") {
        let _ = write!(std::io::stdout(), "{}", layers.print());
        return ExitCode::SUCCESS;
    }
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            complain(format_args!("{err:#}"));
            ExitCode::FAILURE
        }
    }
}

/// What file, environment and flags say, each before the next.
fn layers(matches: &ArgMatches) -> Result<Layers, String> {
    let mut layers = Layers::default();
    if let Some(path) = matches.get_one::<String>("config") {
        layers.read_file(Path::new(path))?;
    }
    for setting in SETTINGS {
        let source = match matches.value_source(setting.key) {
            Some(ValueSource::EnvVariable) => Source::Environment(setting.env),
            Some(ValueSource::CommandLine) => Source::Flag(setting.key),
            _ => continue,
        };
        let values = matches
            .get_many::<String>(setting.key)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        layers.set(setting.key, values, source);
    }
    Ok(layers)
}

fn run(config: Config) -> anyhow::Result<()> {
    start_logging(config.log_level, config.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(config.limits.requests + 32)
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

fn deliver(matches: &ArgMatches) -> ExitCode {
    let args = match Deliver::from_arg_matches(matches) {
        Ok(args) => args,
        Err(err) => {
            let _ = err.print();
            return ExitCode::from(sysexits::USAGE);
        }
    };
    match args.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, why }) => {
            let _ = writeln!(Stderr, "spoolbox deliver: {why}");
            ExitCode::from(code)
        }
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
        command().debug_assert();
    }
}
