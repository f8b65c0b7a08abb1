//! The name in a TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3), read before any key exists.
//!
//! Only that name is looked for, and whether it is the true one: an encrypted ClientHello (RFC 9849) inside the one that
//! can be read names another. Everything is bounded, and anything unclear is not accepted as a ClientHello.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest ClientHello. Those of today are below 3 KiB.
const GREETING_MAX: usize = 32 * 1024;
const RECORD_MAX: usize = 16 * 1024;

/// What was read, to be sent on unchanged, and the name in it.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) bytes: Vec<u8>,
    /// Lower case; `None` when it names none, or not to us.
    pub(crate) name: Option<String>,
}

/// Extensions (IANA, TLS ExtensionType Values).
const SERVER_NAME: [u8; 2] = [0, 0];
const ENCRYPTED_HELLO: [u8; 2] = [0xfe, 0x0d];

/// Reads a ClientHello.
///
/// # Errors
/// `InvalidData` when something else comes.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Greeting> {
    let mut bytes = Vec::new();
    let mut message = Vec::new();
    loop {
        let start = bytes.len();
        bytes.resize(start + 5, 0);
        from.read_exact(&mut bytes[start..]).await?;
        let length = usize::from(u16::from_be_bytes([bytes[start + 3], bytes[start + 4]]));
        // A handshake record (22) of any version 3.x.
        let is_record = bytes[start] == 22 && bytes[start + 1] == 3 && (1..=RECORD_MAX).contains(&length);
        if !is_record || bytes.len() + length > GREETING_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let body = bytes.len();
        bytes.resize(body + length, 0);
        from.read_exact(&mut bytes[body..]).await?;
        message.extend_from_slice(&bytes[body..]);
        let Some(&[kind, a, b, c]) = message.first_chunk() else { continue };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind != 1 || length > GREETING_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if let Some(hello) = message[4..].get(..length) {
            // Nothing else may come before the server has answered.
            if message.len() > 4 + length {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let name = server_name(hello).ok_or(io::ErrorKind::InvalidData)?;
            return Ok(Greeting { name, bytes });
        }
    }
}

/// The name in a ClientHello's body; the outer `None` when it is malformed.
#[expect(clippy::option_option, reason = "malformed and nameless are different things")]
fn server_name(hello: &[u8]) -> Option<Option<String>> {
    let mut rest = hello.get(2 + 32..)?; // version, random
    take(&mut rest, 1)?; // session
    take(&mut rest, 2)?; // ciphers
    take(&mut rest, 1)?; // compressions
    if rest.is_empty() {
        return Some(None);
    }
    let mut extensions = take(&mut rest, 2)?;
    let mut found = None;
    let mut is_hidden = false;
    while !extensions.is_empty() {
        let (kind, after) = extensions.split_first_chunk::<2>()?;
        extensions = after;
        let mut body = take(&mut extensions, 2)?;
        is_hidden |= *kind == ENCRYPTED_HELLO;
        if *kind != SERVER_NAME {
            continue;
        }
        let mut names = take(&mut body, 2)?;
        let (0, after) = names.split_first().map(|(kind, after)| (*kind, after))? else { return None };
        names = after;
        let name = std::str::from_utf8(take(&mut names, 2)?).ok()?;
        // Two names, or two lists: whichever we chose, the server could choose the other.
        if !names.is_empty() || !body.is_empty() || found.is_some() {
            return None;
        }
        found = Some(name.to_ascii_lowercase());
    }
    Some(found.filter(|_| !is_hidden))
}

/// A vector with its length before it, in that many bytes.
fn take<'a>(rest: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(size)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (taken, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(size: usize, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&length[4 - size..], body].concat()
    }

    fn name_extension(name: &str) -> Vec<u8> {
        let entry = [&[0][..], &vector(2, name.as_bytes())].concat();
        [&[0, 0][..], &vector(2, &vector(2, &entry))].concat()
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[]),
            &vector(2, &[0, 1]),
            &vector(1, &[0]),
            &vector(2, extensions),
        ];
        [&[1][..], &vector(3, &body.concat())].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|piece| [&[22, 3, 1][..], &vector(2, piece)].concat()).collect()
    }

    async fn read_all(bytes: &[u8]) -> io::Result<Greeting> {
        read(&mut &bytes[..]).await
    }

    #[tokio::test]
    async fn the_name_is_found_however_the_greeting_is_cut() {
        let other = [&[0, 16][..], &vector(2, b"xyz")].concat();
        let message = hello(&[other, name_extension("Example.com")].concat());
        for size in [1, 3, 7, 100, 16_000] {
            let bytes = records(&message, size);
            let greeting = read_all(&[&bytes[..], b"rest"].concat()).await.unwrap();
            assert_eq!(greeting.name.as_deref(), Some("example.com"), "{size}");
            assert_eq!(greeting.bytes, bytes);
        }
    }

    #[tokio::test]
    async fn a_missing_name_is_distinguished_from_a_missing_client_hello() {
        assert_eq!(read_all(&records(&hello(&[]), 100)).await.unwrap().name, None);
        let twice = [name_extension("a.test"), name_extension("b.test")].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            records(&hello(&twice), 500),
            records(&[2, 0, 0, 0], 9),
            records(&hello(&[0, 0, 0, 9]), 100),
            vec![22, 3, 1, 0, 0],
        ] {
            assert_eq!(read_all(&bytes).await.unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_name_beside_an_encrypted_client_hello_is_ignored() {
        let hidden = [&ENCRYPTED_HELLO[..], &vector(2, &[0; 200])].concat();
        for extensions in
            [[name_extension("front.test"), hidden.clone()], [hidden, name_extension("front.test")]]
        {
            assert_eq!(read_all(&records(&hello(&extensions.concat()), 90)).await.unwrap().name, None);
        }
    }

    #[tokio::test]
    async fn nothing_follows_a_client_hello_in_its_record() {
        let message = hello(&name_extension("a.test"));
        let two = [&message[..], &hello(&name_extension("b.test"))].concat();
        for message in [two, [&message[..], &[0]].concat()] {
            assert!(read_all(&records(&message, 9999)).await.is_err());
        }
    }

    #[tokio::test]
    async fn an_endless_client_hello_is_rejected() {
        let message = [&[1, 0, 255, 255][..], &[0; 70_000]].concat();
        assert!(read_all(&records(&message, 16_000)).await.is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = server_name(&body);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let message = [&[1][..], &vector(3, &body)].concat();
            let _ = runtime.block_on(read_all(&records(&message, 50)));
            let _ = runtime.block_on(read_all(&body));
        }
    }
}
