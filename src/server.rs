//! The one function that wires everything together: bind, start, keep up, stop in order.

use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::{Config, Listen};
use crate::follow::Follower;
use crate::http::{self, Api};
use crate::names::MailboxName;
use crate::spool::{Options, Spool};
use crate::task::{self, Tasks};

/// How often sidecars are looked after.
const SAVE_EVERY: Duration = Duration::from_millis(100);

/// Serves a spool until `shutdown` resolves, then finishes what was begun and writes what is due.
pub async fn run(mut config: Config, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    config.limits.connections = within_descriptors(config.limits.connections);
    let Listen::At(address) = &config.http else {
        bail!("there is nothing to serve: --http is off, and it is the only service so far");
    };
    let (listener, address) = bind(address).await?;
    let (spool, created) = open(&config.spool)?;
    if created {
        welcome(&spool, address).context("cannot store the welcome message")?;
    }
    if !spool.is_writable() {
        tracing::warn!(
            "the spool cannot be written: mail can be read, but not stored, marked or deleted"
        );
    }
    announce(&spool, address);

    let follower = Follower::new(spool.clone(), config.watch, config.poll_interval);
    let api = Api {
        spool: spool.clone(),
        follower: follower.clone(),
        started: Instant::now(),
        naming: config.naming,
        base_url: config
            .base_url
            .as_ref()
            .map(|base| base.as_str().to_owned()),
        prefix: config
            .base_url
            .map(|base| base.path().to_vec())
            .unwrap_or_default(),
        allow_origin: config
            .allow_origin
            .iter()
            .map(|origin| origin.as_str().to_owned())
            .collect(),
        tasks: Tasks::new(config.limits.requests),
        body_timeout: config.limits.body,
        address: reachable(address),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move {
        let _ = stopped.await;
    };
    let mut serving = tokio::spawn(http::serve(
        listener,
        http::routes(api),
        config.limits,
        stopped,
    ));
    let saving = tokio::spawn(save(spool.clone()));
    let following = {
        let follower = follower.clone();
        std::thread::Builder::new()
            .name("follow".into())
            .spawn(move || follower.run())
    };
    let following = following.context("cannot start the thread that follows the spool")?;

    tokio::select! {
        () = shutdown => tracing::info!("stopping"),
        _ = &mut serving => bail!("the HTTP server ended by itself"),
    }
    follower.stop();
    let _ = stop.send(());
    let _ = (&mut serving).await;
    saving.abort();
    // Whoever follows the spool may be in the middle of something long, which the next start will do.
    drop(following);
    task::blocking(move || spool.save_all()).await;
    tracing::info!("stopped");
    Ok(())
}

async fn bind(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.map_err(|err| {
        use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
        let hint = match err.kind() {
            AddrInUse => {
                "another server is there: choose another port with --http, or port 0 for a free one"
            }
            PermissionDenied => "ports below 1024 need privileges: choose a higher one with --http",
            AddrNotAvailable => "it is not an address of this machine: try --http 127.0.0.1:9000",
            _ => "check the address given with --http",
        };
        anyhow!("cannot listen on {address} for HTTP: {err} ({hint})")
    })?;
    let address = listener
        .local_addr()
        .context("cannot tell where the server listens")?;
    Ok((listener, address))
}

/// How many connections there may be so that descriptors are left for the mail. The system's limit is
/// raised first, as far as it lets us.
fn within_descriptors(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: Some(limit.maximum.unwrap_or(65_536).min(65_536)),
        ..limit
    };
    if raised.current > limit.current {
        let _ = setrlimit(Resource::Nofile, raised);
    }
    let Some(descriptors) = getrlimit(Resource::Nofile).current else {
        return wanted;
    };
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let possible = descriptors.saturating_sub((descriptors / 4).max(40)).max(1);
    if possible < wanted {
        tracing::warn!(
            "no more than {possible} connections at once: only {descriptors} files may be open (raise it with `ulimit -n`)"
        );
    }
    wanted.min(possible)
}

/// Opens the spool; `true` when its directory had to be made.
fn open(path: &Path) -> anyhow::Result<(Spool, bool)> {
    let created = match std::fs::symlink_metadata(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path).with_context(|| {
                format!(
                    "cannot create the spool directory {} (name another as `spoolbox serve DIR`)",
                    path.display()
                )
            })?;
            // Its name must survive a crash like all that will be in it.
            let parent = std::path::absolute(path)
                .ok()
                .and_then(|path| Some(path.parent()?.to_path_buf()));
            if let Some(parent) = parent.and_then(|parent| std::fs::File::open(parent).ok()) {
                let _ = parent.sync_all();
            }
            true
        }
        _ => false,
    };
    let spool = Spool::open(path, Options::default()).with_context(|| {
        format!(
            "cannot use {} as a spool (it must be a directory that may be read and written; \
             name another as `spoolbox serve DIR`)",
            path.display()
        )
    })?;
    Ok((spool, created))
}

/// Scripts read these lines to learn where the server is. A closed stdout is no reason to stop.
fn announce(spool: &Spool, http: SocketAddr) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "spool {}\nhttp {http}\nready", spool.path().display());
    let _ = out.flush();
}

/// The first message in a spool that was made just now.
fn welcome(spool: &Spool, http: SocketAddr) -> crate::Result<()> {
    let name = MailboxName::parse("welcome")?;
    let mut delivery = spool.mailbox(&name).deliver()?;
    let program =
        std::env::current_exe().map_or("spoolbox".into(), |path| path.display().to_string());
    let text = WELCOME
        .replace("{spool}", &quoted(&spool.path().display().to_string()))
        .replace("{spoolbox}", &quoted(&program))
        .replace("{http}", &reachable(http).to_string())
        .replace("{date}", &chrono::Utc::now().to_rfc2822());
    let written = delivery.write_all(text.as_bytes());
    written.map_err(|source| crate::Error::Io {
        action: "write",
        path: spool.path().join("welcome"),
        source,
    })?;
    delivery.commit()?;
    Ok(())
}

/// A path as a shell wants it.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
    if path.chars().all(plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// An address that a client on this machine can use: nobody can connect to 0.0.0.0.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

const WELCOME: &str = include_str!("welcome.eml");

/// Lets the sidecars follow what changed.
async fn save(spool: Spool) {
    loop {
        tokio::time::sleep(SAVE_EVERY).await;
        if spool.is_behind() {
            let spool = spool.clone();
            task::blocking(move || spool.save_due()).await;
        }
    }
}
