//! Work that one caller does for all who wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;

/// Shares an fsync of a directory: whoever asks while one is running waits for the next, and one of
/// those who wait runs it for all of them.
#[derive(Debug, Default)]
pub struct Batch {
    asked: AtomicU64,
    /// The directory that was last synced, and the last request that this covered.
    done: Mutex<((u64, u64), u64)>,
}

impl Batch {
    /// Returns once `work` has run from start to end after this call began, for the directory
    /// that `target` identifies. A failure is told to the one who met it; the others try again.
    pub fn run(&self, target: (u64, u64), work: impl FnOnce() -> Result<()>) -> Result<()> {
        let ticket = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut done = self
            .done
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if done.0 == target && done.1 >= ticket {
            return Ok(());
        }
        let covers = self.asked.load(Ordering::SeqCst);
        work()?;
        *done = (target, covers);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn everyone_is_covered_by_work_that_began_after_they_asked() {
        let batch = Batch::default();
        let runs = AtomicUsize::new(0);
        let slow = || {
            runs.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| batch.run((1, 1), slow).unwrap());
            }
        });
        let shared = runs.load(Ordering::SeqCst);
        assert!((1..16).contains(&shared), "{shared} runs for 16 callers");
        batch.run((1, 1), slow).unwrap();
        batch.run((1, 2), slow).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), shared + 2);
    }
}
