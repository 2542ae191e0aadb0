//! The handlers: each takes what the path named and gives back an answer.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use warp::Buf;
use warp::http::{HeaderMap, HeaderValue, Method, header};
use warp::reply::{Reply, Response};

use super::attachment::{self, Purpose};
use super::error::ApiError;
use super::route::{Action, IdOrLatest, Route};
use super::{Api, model, origin};
use crate::error::{Error, IoContext};
use crate::message::Message;
use crate::spool::{Entry, Mailbox, Source};
use crate::task;

/// More than any `{"seen": true}` needs.
const BODY_MAX: usize = 64 * 1024;

/// A source up to this length is read at once; a longer one is streamed in pieces of it.
const PIECE: usize = 256 * 1024;

/// A message up to this length is taken apart at once; a longer one waits its turn.
const SMALL: u64 = 128 * 1024;

/// The newest message may be deleted between being found and being read; then there is another.
const LATEST_TRIES: usize = 5;

impl Api {
    /// Answers one request.
    pub async fn handle<B: Buf>(
        self: Arc<Self>,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: impl Stream<Item = Result<B, warp::Error>>,
    ) -> Result<Response, ApiError> {
        let route = Route::parse(path, &self.prefix)?;
        let action = route.action(method)?;
        if action.is_change() {
            origin::check(headers, &self.allow_origin)?;
        }
        match (route, action) {
            (Route::Mailbox(name), Action::Get) => self.list(name).await,
            (Route::Mailbox(name), _) => self.purge(name).await,
            (Route::Message(name, id), Action::Get) => self.message(name, id, headers).await,
            (Route::Message(name, id), Action::Patch) => {
                let patch = model::Patch::parse(&read_body(body, self.body_timeout).await?)
                    .map_err(ApiError::BadBody)?;
                self.patch(name, id, patch).await
            }
            (Route::Message(name, id), Action::Delete) => self.delete(name, id).await,
            (Route::Status, _) => self.status().await,
            (Route::Live, _) => Ok(text("ok\n")),
            (Route::Ready, _) => self.ready().await,
            (Route::Source(name, id), _) => self.source(name, id).await,
            (
                Route::Attachment {
                    mailbox,
                    id,
                    number,
                    purpose,
                },
                _,
            ) => self.attachment(mailbox, id, number, purpose).await,
        }
    }

    /// An unchanged list costs a look at the directory's stamp, and no other thread.
    async fn list(self: Arc<Self>, name: String) -> Result<Response, ApiError> {
        let at_once = self
            .mailbox(&name)?
            .list_at_once()
            .and_then(|listing| listing.already_rendered());
        if let Some(bytes) = at_once {
            return Ok(json(bytes));
        }
        self.run(name, |mailbox| {
            Ok(json(mailbox.list()?.rendered(model::list)))
        })
        .await
    }

    async fn purge(self: Arc<Self>, name: String) -> Result<Response, ApiError> {
        self.run(name, |mailbox| {
            mailbox.purge()?;
            Ok(ok())
        })
        .await
    }

    async fn message(
        self: Arc<Self>,
        name: String,
        id: IdOrLatest,
        headers: &HeaderMap,
    ) -> Result<Response, ApiError> {
        let base = self.base(headers);
        self.on_message(name, id, move |mailbox, entry, message| {
            Ok(json(
                model::message(mailbox.name(), entry, &message, &base).into(),
            ))
        })
        .await
    }

    async fn patch(
        self: Arc<Self>,
        name: String,
        id: IdOrLatest,
        patch: model::Patch,
    ) -> Result<Response, ApiError> {
        self.run(name, move |mailbox| {
            on_id(mailbox, &id, |id| match patch.seen {
                Some(seen) => mailbox.mark_seen(id, seen),
                None => mailbox.entry(id).map(drop),
            })?;
            Ok(ok())
        })
        .await
    }

    async fn delete(self: Arc<Self>, name: String, id: IdOrLatest) -> Result<Response, ApiError> {
        let IdOrLatest::Id(id) = id else {
            return Err(ApiError::LatestIsNoId);
        };
        self.run(name, move |mailbox| {
            mailbox.remove(&id)?;
            Ok(ok())
        })
        .await
    }

    async fn source(self: Arc<Self>, name: String, id: IdOrLatest) -> Result<Response, ApiError> {
        self.run(name, move |mailbox| {
            let Source { mut file, size } = on_id(mailbox, &id, |id| mailbox.source(id))?;
            let mut response = if size <= PIECE as u64 {
                let mut bytes = Vec::with_capacity(size as usize + 1);
                let read = (&mut file).take(size).read_to_end(&mut bytes);
                read.during("read", mailbox.name().as_str())?;
                Response::new(bytes.into())
            } else {
                let mut response = warp::reply::stream(pieces(file, size)).into_response();
                response
                    .headers_mut()
                    .insert(header::CONTENT_LENGTH, size.into());
                response
            };
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            headers.insert(
                header::X_CONTENT_TYPE_OPTIONS,
                HeaderValue::from_static("nosniff"),
            );
            headers.insert(header::EXPIRES, HeaderValue::from_static("-1"));
            Ok(response)
        })
        .await
    }

    async fn attachment(
        self: Arc<Self>,
        name: String,
        id: IdOrLatest,
        number: String,
        purpose: Purpose,
    ) -> Result<Response, ApiError> {
        self.on_message(name, id, move |_, _, message| {
            let place = number
                .parse()
                .ok()
                .filter(|_| number.bytes().all(|b| b.is_ascii_digit()));
            let found = place.and_then(|place: usize| {
                Some((place, message.attachments.into_iter().nth(place)?))
            });
            let (place, part) = found.ok_or(ApiError::NoAttachment(number))?;
            Ok(attachment::response(place, part, purpose))
        })
        .await
    }

    async fn status(self: Arc<Self>) -> Result<Response, ApiError> {
        let tasks = self.tasks.clone();
        let status = move || {
            json(model::status(&self.spool, &self.follower.status(), self.started.elapsed()).into())
        };
        Ok(tasks.short(status).await?)
    }

    /// Not counted as work: whoever watches over the server must get an answer.
    async fn ready(self: Arc<Self>) -> Result<Response, ApiError> {
        let ready = task::blocking(move || {
            self.spool.mailboxes()?;
            if self.spool.is_writable() {
                Ok(text("ok\n"))
            } else {
                Err(ApiError::NotWritable)
            }
        });
        ready.await.unwrap_or(Err(ApiError::Broken))
    }

    /// Does something with a mailbox where it may block.
    async fn run(
        self: Arc<Self>,
        name: String,
        work: impl FnOnce(&Mailbox) -> Result<Response, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let tasks = self.tasks.clone();
        // Those who would only wait for one who is reading many files need no thread to wait in.
        let busy = self.mailbox(&name)?.is_being_read();
        let work = move || work(&self.mailbox(&name)?);
        if busy {
            tasks.long(work).await?
        } else {
            tasks.short(work).await?
        }
    }

    /// Does something with a message that has been taken apart; a large one has to wait its turn.
    async fn on_message(
        self: Arc<Self>,
        name: String,
        id: IdOrLatest,
        show: impl FnOnce(&Mailbox, &Entry, Message) -> Result<Response, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let api = self.clone();
        let (given, wanted) = (name.clone(), id.clone());
        let first = self
            .tasks
            .short(move || -> Result<_, ApiError> {
                let mailbox = api.mailbox(&given)?;
                match on_id(&mailbox, &wanted, |id| mailbox.message_up_to(id, SMALL))? {
                    Some((entry, message)) => Ok(Ok(show(&mailbox, &entry, message)?)),
                    None => Ok(Err(show)),
                }
            })
            .await??;
        let show = match first {
            Ok(response) => return Ok(response),
            Err(show) => show,
        };
        let tasks = self.tasks.clone();
        tasks
            .long(move || {
                let mailbox = self.mailbox(&name)?;
                let (entry, message) = on_id(&mailbox, &id, |id| mailbox.message(id))?;
                show(&mailbox, &entry, message)
            })
            .await?
    }

    fn mailbox(&self, given: &str) -> Result<Mailbox, Error> {
        let name = self.naming.resolve(&self.spool, given)?;
        Ok(self.spool.mailbox(&name))
    }

    /// What links begin with.
    fn base(&self, headers: &HeaderMap) -> String {
        match (&self.base_url, origin::host(headers)) {
            (Some(base), _) => base.clone(),
            (None, Some(host)) => format!("http://{host}"),
            (None, None) => format!("http://{}", self.address),
        }
    }
}

/// Does something with the message that is meant.
fn on_id<T>(
    mailbox: &Mailbox,
    id: &IdOrLatest,
    work: impl Fn(&crate::MessageId) -> Result<T, Error>,
) -> Result<T, Error> {
    let IdOrLatest::Id(id) = id else {
        for _ in 1..LATEST_TRIES {
            match work(mailbox.latest()?.id()) {
                Err(Error::NoMessage { .. }) => {}
                other => return other,
            }
        }
        return work(mailbox.latest()?.id());
    };
    work(id)
}

/// The bytes of a file, as many as it had when it was opened. A file that became shorter ends the
/// connection, so that the client notices.
fn pieces(file: std::fs::File, size: u64) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    stream::try_unfold((file, size), |(mut file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let piece = task::blocking(move || {
            let mut bytes = Vec::with_capacity(PIECE);
            let read = (&mut file)
                .take(left.min(PIECE as u64))
                .read_to_end(&mut bytes);
            read.map(|_| (bytes, file))
        });
        let (bytes, file) = piece
            .await
            .unwrap_or_else(|| Err(std::io::Error::other("reading failed")))?;
        if bytes.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let left = left - bytes.len() as u64;
        Ok(Some((Bytes::from(bytes), (file, left))))
    })
}

async fn read_body<B: Buf>(
    body: impl Stream<Item = Result<B, warp::Error>>,
    patience: Duration,
) -> Result<Bytes, ApiError> {
    let whole = tokio::time::timeout(patience, collect(body)).await;
    whole.unwrap_or(Err(ApiError::BodyTooSlow))
}

async fn collect<B: Buf>(
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Bytes, ApiError> {
    let mut body = std::pin::pin!(body);
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        let mut piece = piece.map_err(|err| ApiError::BadBody(err.to_string()))?;
        if bytes.len() + piece.remaining() > BODY_MAX {
            return Err(ApiError::BodyTooLarge(BODY_MAX));
        }
        bytes.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
    }
    Ok(bytes.freeze())
}

fn text(text: &'static str) -> Response {
    let mut response = Response::new(text.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn ok() -> Response {
    json(Bytes::from_static(b"\"OK\"\n"))
}

fn json(bytes: Bytes) -> Response {
    let mut response = Response::new(bytes.into());
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json; charset=utf-8"),
    );
    headers.insert(header::EXPIRES, HeaderValue::from_static("-1"));
    response
}
