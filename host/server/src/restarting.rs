//! Tasks that work in the background for as long as the host runs: one that panics is told, counted and started anew,
//! so that no defect quietly leaves a worker unwatched.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::telemetry::Telemetry;

/// Before a task that panicked starts anew: a panic that repeats must not fill the log.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Runs a task to its own end, however often it panics. Dropping the future ends the task.
pub async fn restarting<F>(name: &'static str, telemetry: Arc<Telemetry>, start: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let mut task = JoinSet::new();
        task.spawn(start());
        let Some(Err(error)) = task.join_next().await else { return };
        telemetry.metrics.task_panic(name);
        tracing::error!("the task {name:?} failed and is started anew: {error}");
        tokio::time::sleep(RESTART_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_counted_and_starts_anew() {
        let telemetry = Arc::new(Telemetry::default());
        let starts = Arc::new(AtomicUsize::new(0));
        restarting("probe", telemetry.clone(), || {
            let starts = starts.clone();
            async move {
                assert!(starts.fetch_add(1, Ordering::Relaxed) >= 2, "a defect");
            }
        })
        .await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
        let line = r#"sluice_task_panics_total{task="probe"} 2"#;
        let text = telemetry.metrics.encode();
        assert!(text.lines().any(|other| other == line), "{text}");
    }
}
