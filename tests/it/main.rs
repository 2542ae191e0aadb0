//! One harness for everything that takes a real server, real sockets or real files.
//!
//! Pure pieces are tested at the bottom of their own file. Here, every module says what it shows;
//! waiting is done with deadlines, never with bare sleeps. What needs programs that Rust does not
//! bring (curl, rsync, strace) is `#[ignore]`d with the reason and runs under
//! `scripts/test --all`.

mod support;

mod api;
mod attachments;
mod backup;
mod check;
mod cost;
mod delivery;
mod drops;
mod edge;
mod fixtures;
mod hostile;
mod layout;
mod names;
mod program;
mod readme;
mod sharing;
mod sidecar;
mod states;
mod strays;
mod watching;
