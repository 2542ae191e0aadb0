//! Directories held open: the only place that hands names to the operating system.
//!
//! Everything inside the spool is opened relative to the handle of its directory, without following
//! links and without blocking, and must turn out to be a regular file (or a directory, where one is
//! asked for) before anything is read from it. A link planted in the spool, a FIFO called `x.eml`
//! or a directory swapped under our feet can thus cost an error, never a hang or a step outside.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::freshness::{DirStamp, FileStamp, FsClock};
use crate::error::{Error, IoContext, Result};

/// An open directory, with the path under which it was opened for messages to people.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// One name in a directory, as the directory itself tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: FileType,
}

/// What opening a name for reading came to.
#[derive(Debug)]
pub enum Opened {
    File(File, FileStamp),
    Missing,
    /// Something is there that is not a regular file.
    NotAFile,
    /// A regular file, or what may be one, that this process may not read.
    Forbidden,
}

impl Dir {
    /// Opens the spool itself, whose path may lead over links: it is its owner's.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self {
                fd,
                path: path.to_path_buf(),
            }),
            Err(Errno::NOTDIR) => Err(Error::NotADirectory {
                path: path.to_path_buf(),
            }),
            Err(err) => Err(err).during("open directory", path),
        }
    }

    /// Opens a directory in this one; `None` when there is nothing of that name.
    pub fn child(&self, name: &str) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY
            | OFlags::DIRECTORY
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let path = self.path.join(name);
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path })),
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::NotADirectory { path }),
            Err(err) => Err(err).during("open directory", path),
        }
    }

    /// Makes a directory in this one; `false` when there is something of that name already.
    pub fn make_child(&self, name: &str) -> Result<bool> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(err) => Err(err).during("create directory", self.path.join(name)),
        }
    }

    /// Removes a directory in this one if it is empty; one that is not stays.
    pub fn remove_empty_child(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn stamp(&self) -> Result<DirStamp> {
        let stat = rustix::fs::fstat(&self.fd).during("examine", &self.path)?;
        Ok(DirStamp::of(&stat))
    }

    /// Whose clock stamps what changes here.
    pub fn clock(&self) -> FsClock {
        rustix::fs::fstatfs(&self.fd).map_or(FsClock::Foreign, |stat| FsClock::of(&stat))
    }

    pub fn is_writable(&self) -> bool {
        rustix::fs::accessat(&self.fd, ".", Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }

    /// Every name in the directory but `.` and `..`.
    pub fn names(&self) -> Result<Vec<DirEntry>> {
        let mut names = Vec::new();
        let entries = rustix::fs::Dir::read_from(&self.fd).during("read directory", &self.path)?;
        for entry in entries {
            let entry = entry.during("read directory", &self.path)?;
            let name = CStr::to_bytes(entry.file_name());
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not tell; a name that is gone again is nobody's business.
                FileType::Unknown => {
                    match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        Err(_) => continue,
                    }
                }
                kind => kind,
            };
            names.push(DirEntry {
                name: name.to_vec(),
                inode: entry.ino(),
                kind,
            });
        }
        Ok(names)
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, name: &str) -> Result<Opened> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NAMETOOLONG | Errno::STALE) => return Ok(Opened::Missing),
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(Opened::NotAFile),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Opened::Forbidden),
            Err(err) => return Err(err).during("open", self.path.join(name)),
        };
        let stat = rustix::fs::fstat(&fd).during("examine", self.path.join(name))?;
        Ok(match regular(&stat) {
            Some(stamp) => Opened::File(File::from(fd), stamp),
            None => Opened::NotAFile,
        })
    }

    /// The stamp of a regular file; `None` when there is none of that name.
    pub fn file_stamp(&self, name: &str) -> Result<Option<FileStamp>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(regular(&stat)),
            Err(Errno::NOENT | Errno::NAMETOOLONG | Errno::STALE) => Ok(None),
            Err(err) => Err(err).during("examine", self.path.join(name)),
        }
    }

    /// Creates a file that must not exist yet, for writing and reading back.
    pub fn create(&self, name: &str) -> Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o666))
            .during("create", self.path.join(name))?;
        Ok(File::from(fd))
    }

    /// Gives a file a second name, which must be free; `false` when it is taken.
    pub fn link(&self, from: &str, to: &str) -> Result<bool> {
        match rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(err) => Err(err).during("publish", self.path.join(to)),
        }
    }

    /// Removes a name; `false` when it was gone already.
    pub fn unlink(&self, name: &str) -> Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(err) => Err(err).during("remove", self.path.join(name)),
        }
    }

    /// Puts a file in the place of another, if there is one.
    pub fn replace(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to).during("replace", self.path.join(to))
    }

    /// Makes what was created, linked or removed here survive a crash.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).during("sync", &self.path)
    }

    /// Waits a while for the directory's advisory lock, which goes with this handle. Whether it was
    /// had does not matter much: it only keeps two servers from replacing each other's index in the
    /// same instant.
    pub fn lock(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The stamp of the directory at a path, without opening it; `None` when there is no directory.
pub fn stamp_at(path: &Path) -> Result<Option<DirStamp>> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Ok(Some(DirStamp::of(&stat)))
        }
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP) => Ok(None),
        Err(err) => Err(err).during("examine", path),
    }
}

/// Takes the advisory lock that shows a temporary file's writer to be alive.
pub fn lock_file(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn regular(stat: &Stat) -> Option<FileStamp> {
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then(|| FileStamp::of(stat))
}
