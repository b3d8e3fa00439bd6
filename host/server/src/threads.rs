//! The threads that serve clients: each with an event loop of its own, so that a client's connection and those to the
//! engines that work for it are woken on one thread.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::time::timeout;

thread_local! {
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Which data thread this is; `None` on all others.
pub fn data_thread() -> Option<usize> {
    NUMBER.get()
}

/// How far off the nearest timer of an idle data thread is: less than what most requests wait for, and far enough that
/// waking up for it costs nothing.
const NEAREST_TIMER: Duration = Duration::from_secs(1);

/// Threads beside each data thread for what must not hold it up: long bodies being read, names being resolved. Many,
/// since a name server that is silent keeps one for each name asked of it; what comes on top waits.
const THREADS_BESIDE_AT_MOST: usize = 128;

/// How many data threads a host has: one for each CPU it may use.
pub fn wanted() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The data threads. Dropping it ends them with all that runs there.
#[derive(Debug)]
pub struct DataThreads {
    threads: Vec<DataThread>,
}

#[derive(Debug)]
struct DataThread {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl DataThreads {
    /// Starts so many.
    pub fn start(count: usize) -> io::Result<Self> {
        let threads = (0..count.max(1)).map(DataThread::start).collect::<io::Result<_>>()?;
        Ok(Self { threads })
    }

    /// A place on the thread with the fewest connections.
    pub fn place(&self) -> (Handle, ThreadPlace) {
        let load = |thread: &&DataThread| thread.connections.load(Ordering::Relaxed);
        // There is always one: `start` makes at least one.
        let thread = self.threads.iter().min_by_key(load).unwrap_or(&self.threads[0]);
        thread.connections.fetch_add(1, Ordering::Relaxed);
        (thread.runtime.clone(), ThreadPlace(thread.connections.clone()))
    }
}

/// A connection's place on its thread, given back when dropped.
#[derive(Debug)]
pub struct ThreadPlace(Arc<AtomicUsize>);

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DataThread {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(THREADS_BESIDE_AT_MOST)
            .build()?;
        let handle = runtime.handle().clone();
        let end = Arc::new(Notify::new());
        let ended = end.clone();
        let thread = std::thread::Builder::new().name(format!("data-{number}")).spawn(move || {
            NUMBER.set(Some(number));
            // A timer that comes before all others wakes the event loop from its own thread, with a write and another
            // round. Requests' timers are further off than this one, so that none of them does.
            runtime.block_on(async { while timeout(NEAREST_TIMER, ended.notified()).await.is_err() {} });
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), end, thread: Some(thread) })
    }
}

impl Drop for DataThread {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic on it was told when it happened.
            let _ = thread.join();
        }
    }
}
