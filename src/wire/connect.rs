//! Connect RPC with JSON: envelopes for streams, codes and errors: the protocol of envd.
//!
//! A stream always answers status 200; its real outcome is in the last envelope. One without that envelope was cut off.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The content type of unary calls, both ways.
pub const UNARY_CONTENT_TYPE: &str = "application/json";
/// The content type of streams, both ways.
pub const STREAM_CONTENT_TYPE: &str = "application/connect+json";

const COMPRESSED: u8 = 0b01;
const END_STREAM: u8 = 0b10;

/// One message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// A message, as JSON.
    Message(Bytes),
    /// The end, as the JSON of an [`EndStream`].
    End(Bytes),
}

/// Bytes that are not a stream of envelopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Larger than the reader allows.
    #[error("an envelope announces {announced} bytes, more than the {limit} allowed")]
    TooLarge {
        /// What its header says.
        announced: u32,
        /// What is allowed.
        limit: usize,
    },
    /// Compression was not asked for.
    #[error("an envelope is compressed or has unknown flags ({0:#04x})")]
    Flags(u8),
}

impl Envelope {
    /// The envelope as bytes.
    ///
    /// ```
    /// use pathbox::wire::connect::Envelope;
    /// let bytes = Envelope::Message(br#"{"process":{"pid":5}}"#.as_slice().into()).encode();
    /// assert_eq!(&bytes[..5], [0, 0, 0, 0, 0x15]);
    /// ```
    pub fn encode(&self) -> Bytes {
        let (flags, payload) = match self {
            Self::Message(payload) => (0, payload),
            Self::End(payload) => (END_STREAM, payload),
        };
        let mut out = BytesMut::with_capacity(5 + payload.len());
        out.put_u8(flags);
        out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(payload);
        out.freeze()
    }

    /// A message envelope around a value.
    ///
    /// # Errors
    /// When the value does not serialize.
    pub fn message(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::Message(serde_json::to_vec(value)?.into()))
    }

    /// The last envelope: success, or an error.
    pub fn end(error: Option<RpcError>) -> Self {
        Self::End(serde_json::to_vec(&EndStream { error }).unwrap_or_else(|_| b"{}".to_vec()).into())
    }
}

/// Reads envelopes out of bytes that arrive cut anywhere.
#[derive(Debug)]
pub struct EnvelopeReader {
    buffer: BytesMut,
    limit: usize,
}

impl EnvelopeReader {
    /// A reader that refuses payloads of more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit }
    }

    /// Adds bytes.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole envelope, if it has arrived.
    ///
    /// # Errors
    /// [`EnvelopeError`]; the stream cannot be read any further.
    #[expect(clippy::should_implement_trait, reason = "it ends for now and goes on after `push`")]
    pub fn next(&mut self) -> Result<Option<Envelope>, EnvelopeError> {
        let Some(head) = self.buffer.first_chunk::<5>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        let announced = u32::from_be_bytes(length);
        if flags & !END_STREAM != 0 || flags & COMPRESSED != 0 {
            return Err(EnvelopeError::Flags(flags));
        }
        let length = announced as usize;
        if length > self.limit {
            return Err(EnvelopeError::TooLarge { announced, limit: self.limit });
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        let _ = self.buffer.split_to(5);
        let payload = self.buffer.split_to(length).freeze();
        Ok(Some(if flags == END_STREAM { Envelope::End(payload) } else { Envelope::Message(payload) }))
    }

    /// Whether bytes of an unfinished envelope are left.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// The payload of the last envelope.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EndStream {
    /// Why the call failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// A Connect error: the body of a failed unary call, or part of the last envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// What kind of failure.
    pub code: Code,
    /// What went wrong, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl RpcError {
    /// An error.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)+) => {
        /// The kinds of failure that Connect knows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The code as it stands on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The HTTP status of a unary call that fails with it.
            pub fn http_status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }
        }
    };
}

codes! {
    /// The caller gave up.
    Canceled = "canceled", 499;
    /// The request makes no sense.
    InvalidArgument = "invalid_argument", 400;
    /// The deadline passed.
    DeadlineExceeded = "deadline_exceeded", 504;
    /// No such process or file.
    NotFound = "not_found", 404;
    /// It is there already.
    AlreadyExists = "already_exists", 409;
    /// Not allowed.
    PermissionDenied = "permission_denied", 403;
    /// Too much of something.
    ResourceExhausted = "resource_exhausted", 429;
    /// Not in this state.
    FailedPrecondition = "failed_precondition", 400;
    /// Lost against another call.
    Aborted = "aborted", 409;
    /// Past the end.
    OutOfRange = "out_of_range", 400;
    /// No such method.
    Unimplemented = "unimplemented", 501;
    /// A bug of the server.
    Internal = "internal", 500;
    /// Not now; also what a proxy's 502 and 503 mean.
    Unavailable = "unavailable", 503;
    /// Data is gone.
    DataLoss = "data_loss", 500;
    /// No or bad credentials, or an unknown user.
    Unauthenticated = "unauthenticated", 401;
    /// No one knows. Also read for codes from the future.
    #[serde(other)]
    Unknown = "unknown", 500;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_stream_reads_the_same_however_it_is_cut() {
        let messages = [r#"{"event": {"start": {"pid": 77}}}"#, r#"{"event": {"keepalive": {}}}"#];
        let mut bytes = Vec::new();
        for message in messages {
            bytes.extend_from_slice(&Envelope::Message(message.into()).encode());
        }
        bytes.extend_from_slice(&[2, 0, 0, 0, 2, b'{', b'}']);
        for size in 1..bytes.len() {
            let mut reader = EnvelopeReader::new(100);
            let mut out = Vec::new();
            for chunk in bytes.chunks(size) {
                reader.push(chunk);
                while let Some(envelope) = reader.next().unwrap() {
                    out.push(envelope);
                }
            }
            assert!(reader.is_empty());
            assert_eq!(
                out,
                [
                    Envelope::Message(messages[0].into()),
                    Envelope::Message(messages[1].into()),
                    Envelope::End("{}".into())
                ]
            );
        }
    }

    #[test]
    fn an_envelope_beyond_the_limit_is_refused_before_it_is_read() {
        let mut reader = EnvelopeReader::new(100);
        reader.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(reader.next(), Err(EnvelopeError::TooLarge { announced: u32::MAX, limit: 100 }));
        let mut reader = EnvelopeReader::new(100);
        reader.push(&[1, 0, 0, 0, 0]);
        assert_eq!(reader.next(), Err(EnvelopeError::Flags(1)));
    }

    #[test]
    fn the_end_carries_the_error() {
        let error = RpcError::new(Code::NotFound, "nope");
        let Envelope::End(payload) = Envelope::end(Some(error.clone())) else { panic!() };
        assert_eq!(payload, r#"{"error":{"code":"not_found","message":"nope"}}"#);
        assert_eq!(serde_json::from_slice::<EndStream>(&payload).unwrap().error, Some(error));
        assert_eq!(Envelope::end(None).encode(), [2, 0, 0, 0, 2, b'{', b'}'].as_slice());
    }

    #[test]
    fn codes_have_the_names_of_the_wire() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{code}\""));
        }
        assert_eq!(serde_json::from_str::<Code>("\"from_the_future\"").unwrap(), Code::Unknown);
    }
}
