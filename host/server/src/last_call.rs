//! The end of a client's connection when the host stops.
//!
//! A request that the client has just sent must not meet a closed connection: it cannot know whether it was taken, and
//! may not send it again. So each connection stays open for one more request, whose answer says that it was the last.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// How long a connection without a request waits for one after the signal to stop: a busy client's next request, or
/// the first one of a connection that has just come, is here by then.
const LAST_CALL: Duration = Duration::from_millis(500);

/// A connection that can be told to end once what is under way on it is done.
pub trait Gentle: Future {
    /// Takes no more requests, and ends after the one under way.
    fn end_gently(self: Pin<&mut Self>);
}

impl<I, B, S> Gentle for hyper::server::conn::http1::Connection<I, S>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn end_gently(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves a connection to its end. One that breaks is its client's own end; requests on it are accounted by themselves.
pub async fn serve(connection: impl Gentle, mut stop: watch::Receiver<bool>) {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = sleep(LAST_CALL) => {}
    }
    connection.as_mut().end_gently();
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use tokio::time::Instant;

    use super::*;

    /// Ends when told to, never by itself.
    struct Idle {
        told: bool,
    }

    impl Future for Idle {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.told { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Gentle for Idle {
        fn end_gently(mut self: Pin<&mut Self>) {
            self.told = true;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_gets_its_last_call() {
        let (send, stop) = watch::channel(false);
        let began = Instant::now();
        let stopping = async {
            sleep(Duration::from_secs(9)).await;
            let _ = send.send(true);
        };
        tokio::join!(serve(Idle { told: false }, stop), stopping);
        assert_eq!(began.elapsed(), Duration::from_secs(9) + LAST_CALL);
    }
}
