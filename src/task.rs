//! The one place that moves blocking work off the async threads, and bounds it.
//!
//! Work that reads or writes a little runs at once, in a thread of its own. Work that may take long
//! (a large message, a mailbox that is being indexed) waits its turn, without a thread, for one of
//! a few places: so it never takes more than its share of the processors, and what is quick stays
//! quick. When too much waits, more is refused rather than piled up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undone {
    /// There is too much of it already.
    Overloaded,
    /// It panicked.
    Broken,
}

/// Runs work and knows how much of it there is.
#[derive(Debug, Clone)]
pub struct Tasks {
    /// Short work that waits or runs.
    short: Arc<AtomicUsize>,
    /// Long work that waits or runs; counted apart, so that it cannot crowd out the short.
    long: Arc<AtomicUsize>,
    max: usize,
    /// Places for work that takes long.
    places: Arc<Semaphore>,
}

impl Tasks {
    /// No more than `max` pieces of short work, and half as many of long, may wait or run.
    pub fn new(max: usize) -> Self {
        let places = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
        Self {
            short: Arc::default(),
            long: Arc::default(),
            max,
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// Runs work that is soon done.
    pub async fn short<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Undone> {
        let _counted = count(&self.short, self.max)?;
        blocking(work).await.ok_or(Undone::Broken)
    }

    /// Runs work that may take long, when it is its turn.
    pub async fn long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Undone> {
        let _counted = count(&self.long, self.max.div_ceil(2))?;
        let place = self.places.clone().acquire_owned().await;
        blocking(move || {
            // Given back when the work is done, also when nobody waits for it any more.
            let _place = place;
            work()
        })
        .await
        .ok_or(Undone::Broken)
    }
}

fn count(counter: &Arc<AtomicUsize>, max: usize) -> Result<Counted, Undone> {
    let counted = Counted(counter.clone());
    if counted.0.fetch_add(1, Ordering::Relaxed) >= max {
        return Err(Undone::Overloaded);
    }
    Ok(counted)
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs work that reads or writes files where it may block. `None` means that it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Some(result),
        Err(err) => {
            tracing::error!("a task came to a bad end: {err}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn long_work_leaves_room_for_short_work_and_too_much_is_refused() {
        let tasks = Tasks::new(30);
        let mut waiting = Vec::new();
        for _ in 0..15 {
            let tasks = tasks.clone();
            waiting.push(tokio::spawn(async move {
                tasks
                    .long(|| std::thread::sleep(Duration::from_millis(20)))
                    .await
            }));
        }
        tokio::task::yield_now().await;
        assert_eq!(tasks.short(|| 1).await, Ok(1));
        for task in waiting {
            assert_eq!(task.await.unwrap(), Ok(()));
        }
        let full = Tasks::new(0);
        assert_eq!(full.short(|| 1).await, Err(Undone::Overloaded));
        assert_eq!(
            tasks.short(|| -> u8 { panic!("on purpose") }).await,
            Err(Undone::Broken)
        );
        assert_eq!(
            tasks.short.load(Ordering::Relaxed) + tasks.long.load(Ordering::Relaxed),
            0
        );
    }
}
