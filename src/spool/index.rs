//! The index in memory: what a mailbox holds, by id and by date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::freshness::{FileStamp, Timestamp};
use super::ids::ServerId;
use crate::message::Summary;
use crate::names::{MailboxName, MessageId};

/// One message of a mailbox, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub(crate) id: MessageId,
    pub(crate) stamp: FileStamp,
    /// The inode that the directory tells for the name. On most file systems it is the file's; where
    /// it is not, it still changes when the file is replaced.
    pub(crate) dirent: u64,
    /// The file was read so soon after it was written that its stamp may not tell of a later write.
    pub(crate) racy: bool,
    pub(crate) summary: Summary,
    pub(crate) seen: bool,
}

impl Entry {
    /// The message's id, unique within its mailbox.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// When the message came: its file's mtime.
    pub fn date(&self) -> Timestamp {
        self.stamp.mtime
    }

    /// The length of its file in bytes.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// Sender, recipients and subject.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Whether somebody marked it as seen.
    pub fn seen(&self) -> bool {
        self.seen
    }
}

/// The messages of a mailbox at one moment, ascending by the bytes of their ids.
#[derive(Debug)]
pub struct Listing {
    mailbox: MailboxName,
    entries: Vec<Arc<Entry>>,
    rendered: OnceLock<Bytes>,
}

impl Listing {
    /// The mailbox's name.
    pub fn mailbox(&self) -> &MailboxName {
        &self.mailbox
    }

    /// The messages.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// What `render` makes of this listing, made once and kept for as long as nothing changes. The
    /// library does not care what it is.
    pub fn rendered(&self, render: impl FnOnce(&Self) -> Vec<u8>) -> Bytes {
        self.rendered.get_or_init(|| render(self).into()).clone()
    }

    /// The rendering, if it has been made.
    pub fn already_rendered(&self) -> Option<Bytes> {
        self.rendered.get().cloned()
    }
}

/// The entries of one mailbox. Nothing but a new listing costs more than the logarithm of its size.
#[derive(Debug, Default)]
pub struct Index {
    entries: BTreeMap<MessageId, Arc<Entry>>,
    by_date: BTreeSet<(Timestamp, MessageId)>,
    /// The greatest id of the server's own form that was ever here.
    greatest: Option<ServerId>,
    listing: Option<Arc<Listing>>,
    /// The lengths of all messages together.
    bytes: u64,
}

impl Index {
    /// The number of messages and their length in bytes.
    pub fn totals(&self) -> (usize, u64) {
        (self.entries.len(), self.bytes)
    }

    pub fn get(&self, id: &MessageId) -> Option<&Arc<Entry>> {
        self.entries.get(id)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The most recent message: the latest date, and of equal dates the greatest id.
    pub fn latest(&self) -> Option<&Arc<Entry>> {
        self.by_date.last().and_then(|(_, id)| self.entries.get(id))
    }

    pub fn greatest(&self) -> Option<ServerId> {
        self.greatest
    }

    pub fn insert(&mut self, entry: Arc<Entry>) {
        self.listing = None;
        self.greatest = self.greatest.max(ServerId::parse(entry.id.as_str()));
        self.by_date.insert((entry.date(), entry.id.clone()));
        self.bytes = self.bytes.wrapping_add(entry.size());
        if let Some(old) = self.entries.insert(entry.id.clone(), entry.clone()) {
            self.bytes = self.bytes.wrapping_sub(old.size());
            if old.date() != entry.date() {
                self.by_date.remove(&(old.date(), old.id.clone()));
            }
        }
    }

    pub fn remove(&mut self, id: &MessageId) -> Option<Arc<Entry>> {
        let old = self.entries.remove(id)?;
        self.listing = None;
        self.bytes = self.bytes.wrapping_sub(old.size());
        self.by_date.remove(&(old.date(), old.id.clone()));
        Some(old)
    }

    /// All entries in order, made anew only after a change.
    pub fn listing(&mut self, mailbox: &MailboxName) -> Arc<Listing> {
        self.listing
            .get_or_insert_with(|| {
                Arc::new(Listing {
                    mailbox: mailbox.clone(),
                    entries: self.entries.values().cloned().collect(),
                    rendered: OnceLock::new(),
                })
            })
            .clone()
    }

    /// The listing, if nothing changed since it was made.
    pub fn current_listing(&self) -> Option<Arc<Listing>> {
        self.listing.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, seconds: i64) -> Arc<Entry> {
        Arc::new(Entry {
            id: MessageId::parse(id).unwrap(),
            stamp: FileStamp {
                size: 1,
                mtime: Timestamp { seconds, nanos: 0 },
                inode: 1,
                ctime: None,
            },
            dirent: 1,
            racy: false,
            summary: Summary::default(),
            seen: false,
        })
    }

    fn latest(index: &Index) -> Option<&str> {
        index.latest().map(|entry| entry.id().as_str())
    }

    #[test]
    fn latest_goes_by_date_and_then_by_id() {
        let mut index = Index::default();
        assert_eq!(latest(&index), None);
        for (id, date) in [("z", 1), ("a", 5), ("b", 5), ("c", 3)] {
            index.insert(entry(id, date));
        }
        assert_eq!(latest(&index), Some("b"));
        index.insert(entry("b", 2));
        assert_eq!(latest(&index), Some("a"));
        index.remove(&MessageId::parse("a").unwrap());
        assert_eq!(latest(&index), Some("c"));
        assert_eq!(index.totals(), (3, 3));
    }

    #[test]
    fn a_listing_is_made_once_per_change_and_sorted_by_bytes() {
        let mailbox = MailboxName::parse("box").unwrap();
        let mut index = Index::default();
        for id in ["b", "B", "é", "10", "9"] {
            index.insert(entry(id, 1));
        }
        let listing = index.listing(&mailbox);
        let ids: Vec<_> = listing.entries().iter().map(|e| e.id().as_str()).collect();
        assert_eq!(ids, ["10", "9", "B", "b", "é"]);
        assert!(Arc::ptr_eq(&listing, &index.listing(&mailbox)));
        assert_eq!(listing.rendered(|_| b"once".to_vec()), "once");
        assert_eq!(listing.rendered(|_| b"twice".to_vec()), "once");
        index.insert(entry("x", 1));
        assert!(!Arc::ptr_eq(&listing, &index.listing(&mailbox)));
    }
}
