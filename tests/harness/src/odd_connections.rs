//! Connections that do what no HTTP library would: answer with any bytes, or end without a word.

use std::io;
use std::sync::{Mutex, PoisonError};

use hyper::header::HeaderMap;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::mock_engine::{Canned, Recorded};

/// When a connection ends that was good for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closes {
    /// At once after the answer.
    AfterTheAnswer,
    /// Without an answer, when another generation request comes.
    AtTheNextRequest,
}

/// Reads a request's head; answers probes as an engine does, everything else with the bytes.
pub(crate) async fn raw_connection(stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (first, _) = read_head(&mut stream).await?;
    if first.starts_with("GET /health ") {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
    } else {
        stream.write_all(bytes).await?;
    }
    stream.shutdown().await
}

/// Answers probes as an engine does, closing politely; one generation request; and no other.
pub(crate) async fn short_connection(
    stream: TcpStream,
    closes: Closes,
    seen: &Mutex<Vec<Recorded>>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut answered = false;
    loop {
        let (first, length) = read_head(&mut stream).await?;
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        if first.starts_with("GET ") {
            let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(ok.as_bytes()).await?;
            return stream.shutdown().await;
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let recorded = Recorded { path, headers: HeaderMap::new(), body };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
        if answered {
            return stream.shutdown().await;
        }
        let answer = Canned::completed().pieces.concat();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(&[head.as_bytes(), &answer].concat()).await?;
        if closes == Closes::AfterTheAnswer {
            return stream.shutdown().await;
        }
        answered = true;
    }
}

/// The request line, and the length of the body. The end of the connection is an error.
async fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<(String, usize)> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut length = 0;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    Ok((first, length))
}
