//! The one place that moves blocking work off the async threads.

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
