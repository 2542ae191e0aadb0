//! A socket, a service and bodies that note on their connection what is going on.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::service::Service;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use warp::http::{Request, Uri};

use super::connections::{Connection, Phase};

/// A socket that notes when something moves.
pub struct Noted {
    pub inner: TcpStream,
    pub connection: Arc<Connection>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before
            && matches!(self.connection.phase(), Phase::New | Phase::Idle)
        {
            self.connection.enter(Phase::Head);
        }
        result
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl Noted {
    pub fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.connection
            .blocked
            .store(written.is_pending(), Ordering::Relaxed);
        if matches!(written, Poll::Ready(Ok(_))) {
            self.connection.goes_on();
        }
        written
    }
}

/// A service that notes when a request is complete and when its answer is made.
pub struct Attended<S> {
    pub inner: S,
    pub connection: Arc<Connection>,
}

impl<S, R, B> Service<Request<R>> for Attended<S>
where
    R: http_body::Body,
    S: Service<Request<Received<R>>, Response = warp::http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = warp::http::Response<Sent<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<R>) -> Self::Future {
        let complete = request.body().is_end_stream();
        self.connection.enter(if complete {
            Phase::Handling
        } else {
            Phase::Body
        });
        // CONNECT names no path, and warp cannot do without one: no route will be found at this.
        if request.uri().path_and_query().is_none() {
            *request.uri_mut() = Uri::from_static("/");
        }
        let request = request.map(|body| Received {
            body,
            connection: self.connection.clone(),
        });
        let answer = self.inner.call(request);
        let connection = self.connection.clone();
        Box::pin(async move {
            let answer = answer.await?;
            connection.enter(Phase::Sending);
            Ok(answer.map(|body| Sent { body, connection }))
        })
    }
}

/// A request's body that notes when it is complete.
pub struct Received<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B: http_body::Body + Unpin> http_body::Body for Received<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if self.connection.phase() == Phase::Body
            && (self.body.is_end_stream() || matches!(frame, Poll::Ready(None)))
        {
            self.connection.enter(Phase::Handling);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that notes when it is done with.
pub struct Sent<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B> Drop for Sent<B> {
    fn drop(&mut self) {
        self.connection.enter(Phase::Idle);
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
