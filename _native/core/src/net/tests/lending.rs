//! Answers that go to the client's socket.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::server::{Server, Step};
use super::*;
use crate::net::socket::Stop;
use crate::net::status::OK;

/// The core's end, which lives until the tests end, and the client's.
fn pair() -> (BorrowedFd<'static>, &'static UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    let ours: &'static UnixStream = Box::leak(Box::new(ours));
    (ours.as_fd(), ours, theirs)
}

/// The contents of chunks, and what is left behind the last whole one.
fn dechunked(mut wire: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut content = Vec::new();
    loop {
        let Some(end) = wire.windows(2).position(|pair| pair == b"\r\n") else { return (content, wire) };
        let size = usize::from_str_radix(std::str::from_utf8(&wire[..end]).unwrap(), 16).unwrap();
        let Some(body) = wire[end + 2..].get(..size + 2) else { return (content, wire) };
        assert_eq!(&body[size..], b"\r\n");
        content.extend_from_slice(&body[..size]);
        wire = &wire[end + 2 + size + 2..];
    }
}

fn rest(answer: &Answer) -> Vec<u8> {
    let mut taken = Vec::new();
    answer.lock().rest(&mut taken);
    taken
}

fn blocked(told: &[Event]) -> Option<Stop> {
    told.iter().find_map(|event| match event.what {
        What::Blocked(stop) => Some(stop),
        _ => None,
    })
}

/// Reads until the stream's last event.
fn read_whole(client: &mut UnixStream) -> Vec<u8> {
    let mut wire = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let (content, left) = dechunked(&wire);
        if left.is_empty() && content.ends_with(b"data: [DONE]\n\n") {
            return content;
        }
        let count = client.read(&mut piece).unwrap();
        assert_ne!(count, 0);
        wire.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn a_lent_socket_gets_chunks_and_python_hardly_anything() {
    let server = Server::new(|_| {
        let mut steps = vec![data(&chunk("first")), Step::Pause(SHORT)];
        for _ in 0..20 {
            steps.extend([data(&chunk("ab")), Step::Pause(Duration::from_millis(2))]);
        }
        steps.extend([data(&complete("stop")), fine()]);
        steps
    });
    let mut client = Client::new();
    let answer = streamed();
    let _call = client.generate(&server.address, Some(&answer), 1);
    client.wait(|told| !told.is_empty());
    let (fd, _ours, mut theirs) = pair();
    answer.lend(&mut answer.lock(), fd);
    let content = read_whole(&mut theirs);
    assert_eq!(text(&content), (format!("first{}", "ab".repeat(20)), true));
    assert_eq!(client.end(1).code, OK);
    let fed = client.told.iter().filter(|event| matches!(event.what, What::Fed { .. })).count();
    assert!(fed <= 3, "{:?}", client.told);
    assert_eq!(client.fed(1).0, 22);
    assert!(taken(&answer).is_empty());
    assert_eq!(answer.reclaim(&mut answer.lock()), content.len() as u64);
    assert_eq!(answer.reclaim(&mut answer.lock()), 0);
}

#[test]
fn a_full_socket_is_told_of_and_the_rest_is_python_s() {
    const TEXTS: usize = 8000;
    let server = Server::new(|_| {
        let burst: Vec<u8> = (0..100).flat_map(|_| framed(&chunk(LINE))).collect();
        let bursts = vec![Step::Data(burst.into()); TEXTS / 100];
        bursts.into_iter().chain([data(&complete("stop")), fine()]).collect()
    });
    let mut client = Client::new();
    let answer = streamed();
    let (fd, ours, mut theirs) = pair();
    answer.lend(&mut answer.lock(), fd);
    let _call = client.patient(&server.address, Some(&answer), 1, LONG, PATIENT);
    assert_eq!(
        client
            .wait(|told| blocked(told).is_some())
            .iter()
            .filter(|e| matches!(e.what, What::Ended(_)))
            .count(),
        0
    );
    // The worker is held back; time goes by without a deadline.
    std::thread::sleep(PATIENT + SHORT);
    client.net.fetch(&mut client.told);
    assert_eq!(ended(&client.told, 1), None);
    let size = TEXTS * framed(&chunk(LINE)).len();
    assert!(server.seen.lock().unwrap().sent[&0] < size);
    let reader = std::thread::spawn(move || read_whole(&mut theirs));
    let mut ours = ours;
    soon(|| {
        let rest = rest(&answer);
        let mut left = &rest[..];
        while !left.is_empty() {
            match ours.write(left) {
                Ok(count) => left = &left[count..],
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        answer.resume(&mut answer.lock());
        reader.is_finished()
    });
    let content = reader.join().unwrap();
    assert_eq!(text(&content), (LINE.repeat(TEXTS), true));
    assert_eq!(client.end(1).code, OK);
    assert_eq!(answer.reclaim(&mut answer.lock()), content.len() as u64);
}

#[test]
fn a_rest_must_be_fetched_before_the_socket_goes_on() {
    let answer = streamed();
    let (fd, _ours, mut theirs) = pair();
    let mut inner = answer.lock();
    answer.lend(&mut inner, fd);
    inner.feed(0, &chunk("a")).unwrap();
    assert_eq!(inner.flush(), None);
    while inner.flush().is_none() {
        inner.feed(0, &chunk("0123456789")).unwrap();
    }
    assert!(inner.is_full(1));
    answer.resume(&mut inner);
    assert!(inner.is_full(1));
    // What comes meanwhile waits.
    inner.feed(0, &chunk("later")).unwrap();
    assert_eq!(inner.flush(), None);
    drop(inner);
    let mut wire = vec![0; 8 << 20];
    theirs.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    while let Ok(count) = theirs.read(&mut wire) {
        got.extend_from_slice(&wire[..count]);
    }
    got.extend(rest(&answer));
    assert!(rest(&answer).is_empty());
    answer.resume(&mut answer.lock());
    while let Ok(count) = theirs.read(&mut wire) {
        got.extend_from_slice(&wire[..count]);
    }
    let (content, left) = dechunked(&got);
    assert!(left.is_empty());
    let said = text(&content).0;
    assert!(said.starts_with("a0123") && said.ends_with("9later"), "{}", said.len());
}

#[test]
fn a_socket_that_was_taken_back_is_not_touched() {
    let server = Server::new(|_| {
        let mut steps = vec![data(&chunk("a")), Step::Pause(SHORT)];
        steps.extend(said(&["b", "c"]));
        steps
    });
    let mut client = Client::new();
    let answer = streamed();
    let (fd, ours, mut theirs) = pair();
    answer.lend(&mut answer.lock(), fd);
    let _call = client.generate(&server.address, Some(&answer), 1);
    client.wait(|told| !told.is_empty());
    let written = answer.reclaim(&mut answer.lock());
    assert_eq!(client.end(1).code, OK);
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let mut wire = Vec::new();
    theirs.read_to_end(&mut wire).unwrap();
    let (mut content, left) = dechunked(&wire);
    assert_eq!((content.len() as u64, left.len()), (written, 0));
    content.extend(taken(&answer));
    assert_eq!(text(&content), ("abc".to_owned(), true));
}

#[test]
fn sockets_are_lent_and_taken_back_while_they_are_written_to() {
    let server = Server::new(|_| {
        let mut steps: Vec<_> = (0..400).map(|_| data(&chunk("ab"))).collect();
        steps.extend([data(&complete("stop")), fine()]);
        steps
    });
    let mut client = Client::new();
    let answer = streamed();
    let (fd, ours, mut theirs) = pair();
    let _call = client.generate(&server.address, Some(&answer), 1);
    let mut ours = ours;
    let reader = std::thread::spawn(move || read_whole(&mut theirs));
    while !reader.is_finished() {
        answer.lend(&mut answer.lock(), fd);
        std::thread::sleep(Duration::from_micros(100));
        answer.reclaim(&mut answer.lock());
        ours.write_all(&rest(&answer)).unwrap();
        let bytes = taken(&answer);
        if !bytes.is_empty() {
            ours.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).unwrap();
            ours.write_all(&[&bytes[..], b"\r\n"].concat()).unwrap();
        }
    }
    assert_eq!(text(&reader.join().unwrap()), ("ab".repeat(400), true));
    assert_eq!(client.end(1).code, OK);
}

#[test]
fn a_client_that_is_gone_is_told_of() {
    let server = Server::new(|_| [data(&chunk("a"))].into_iter().chain(trickle("b")).collect());
    let mut client = Client::new();
    let answer = streamed();
    let (fd, _ours, theirs) = pair();
    answer.lend(&mut answer.lock(), fd);
    let call = client.generate(&server.address, Some(&answer), 1);
    client.wait(|told| !told.is_empty());
    drop(theirs);
    client.wait(|told| blocked(told) == Some(Stop::Broken));
    drop(call);
    server.wait(|seen| seen.resets == [h2::Reason::CANCEL]);
}

#[test]
fn pings_go_to_idle_sockets_only() {
    let answer = streamed();
    let (fd, _ours, mut theirs) = pair();
    let mut inner = answer.lock();
    inner.ping(b": ping\n\n", Duration::ZERO);
    answer.lend(&mut inner, fd);
    inner.ping(b": early\n\n", LONG);
    inner.ping(b"", Duration::ZERO);
    inner.ping(b": ping\n\n", Duration::ZERO);
    assert_eq!(answer.reclaim(&mut inner), 8);
    let mut wire = vec![0; 13];
    theirs.read_exact(&mut wire).unwrap();
    assert_eq!(wire, b"8\r\n: ping\n\n\r\n");
}
