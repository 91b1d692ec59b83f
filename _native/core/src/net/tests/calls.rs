//! Calls that go well, or end with the worker's own status.

use super::server::{Server, Step};
use super::*;
use crate::net::status::{DEADLINE_EXCEEDED, OK};

#[test]
fn a_call_has_the_head_of_grpc_and_its_messages_come() {
    let server = Server::new(|_| vec![Step::Request, data(b"one"), data(b""), data(b"three"), fine()]);
    let mut client = Client::new();
    assert_eq!(client.net.heard(&server.address), -1);
    let _call = client.generate(&server.address, None, 5);
    assert_eq!(client.end(5), Status::new(OK, ""));
    assert_eq!(client.messages(5), ["one", "", "three"]);
    assert!((0..LONG.as_millis() as i64).contains(&client.net.heard(&server.address)));
    let seen = server.seen.lock().unwrap();
    let head = &seen.calls[0];
    assert_eq!(head.method(), "POST");
    assert_eq!(head.uri().path(), "/sglang.grpc.scheduler.SglangScheduler/Generate");
    assert_eq!(head.uri().authority().unwrap().as_str(), server.address);
    for (name, value) in [("te", "trailers"), ("content-type", "application/grpc")] {
        assert_eq!(head.headers()[name], value);
    }
    assert!(head.headers()["user-agent"].to_str().unwrap().starts_with("wsgi-router/"));
    assert!(!head.headers().contains_key("grpc-timeout"));
    assert_eq!(seen.requests, [5 + b"request".len()]);
}

#[test]
fn messages_may_be_cut_anywhere_and_share_frames() {
    let messages: Vec<Bytes> = (0..40).map(|at| Bytes::from(vec![at as u8; at * 7 % 50])).collect();
    let wire: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
    for size in [1, 3, 7, 64, wire.len()] {
        let frames: Vec<_> =
            wire.chunks(size).map(|piece| Step::Data(Bytes::copy_from_slice(piece))).collect();
        let server = Server::new(move |_| frames.iter().cloned().chain([fine()]).collect());
        let mut client = Client::new();
        let _call = client.generate(&server.address, None, 1);
        assert_eq!(client.end(1).code, OK);
        assert_eq!(client.messages(1), messages, "frames of {size}");
    }
}

#[test]
fn a_message_may_be_larger_than_all_windows() {
    let large = Bytes::from(vec![7; 3 << 20]);
    let sent = large.clone();
    let server = Server::new(move |_| vec![data(&sent), data(b"next"), fine()]);
    let mut client = Client::new();
    let _call = client.generate(&server.address, None, 1);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), [large, Bytes::from("next")]);
}

#[test]
fn a_large_request_passes_a_small_window() {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(16000).initial_connection_window_size(70_000);
    let server = Server::with(builder, |_| vec![Step::Request, data(b"ok"), fine()]);
    let mut client = Client::new();
    let request = vec![1; 5 << 20];
    let _call = client.net.generate(&server.address, &request, None, 1, LONG, LONG).unwrap();
    client.net.submit();
    assert_eq!(client.end(1).code, OK);
    assert_eq!(server.seen.lock().unwrap().requests, [5 + request.len()]);
}

#[test]
fn the_answer_may_come_before_the_request_was_read() {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1000);
    let server = Server::with(builder, |_| {
        vec![Step::Only(vec![("grpc-status", "3"), ("grpc-message", "too%20long")])]
    });
    let mut client = Client::new();
    let _call = client.net.generate(&server.address, &vec![1; 1 << 20], None, 1, LONG, LONG).unwrap();
    client.net.submit();
    assert_eq!(client.end(1), Status::new(3, "too long"));
}

#[test]
fn a_status_comes_in_trailers_or_in_headers_that_are_both() {
    let fields = vec![("grpc-status", "8"), ("grpc-message", "queue%20is full")];
    let kind = vec![("content-type", "application/grpc")];
    let scripts = [
        vec![Step::Only(fields.clone())],
        vec![Step::Head(200, kind), Step::Pause(SHORT), Step::Trailers(fields.clone())],
        vec![data(b"one"), Step::Trailers(fields)],
    ];
    for script in scripts {
        let server = Server::new(move |_| script.clone());
        let mut client = Client::new();
        let _call = client.generate(&server.address, None, 1);
        assert_eq!(client.end(1), Status::new(8, "queue is full"));
    }
}

#[test]
fn long_trailers_come_whole() {
    let words: &'static str = "x".repeat(16 << 10).leak();
    let server =
        Server::new(move |_| vec![Step::Trailers(vec![("grpc-status", "13"), ("grpc-message", words)])]);
    let mut client = Client::new();
    let _call = client.generate(&server.address, None, 1);
    assert_eq!(client.end(1), Status::new(13, words));
}

#[test]
fn a_unary_call_tells_the_worker_its_deadline_and_keeps_it() {
    let server = Server::new(|number| match number {
        0 => vec![data(b"healthy"), fine()],
        _ => vec![data(b"begun"), Step::Hold],
    });
    let mut client = Client::new();
    let call = |tag, limit| client.net.unary(&server.address, "HealthCheck", b"", tag, limit).unwrap();
    let _first = call(1, LONG);
    server.wait(|seen| seen.calls.len() == 1);
    let _second = call(2, PATIENT);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), ["healthy"]);
    assert_eq!(client.end(2), Status::new(DEADLINE_EXCEEDED, "Deadline Exceeded"));
    server.wait(|seen| seen.resets == [h2::Reason::CANCEL]);
    let seen = server.seen.lock().unwrap();
    assert_eq!(seen.calls[0].uri().path(), "/sglang.grpc.scheduler.SglangScheduler/HealthCheck");
    assert_eq!(seen.calls[0].headers()["grpc-timeout"], "20000m");
    assert_eq!(seen.calls[1].headers()["grpc-timeout"], "1500m");
}

#[test]
fn an_address_or_a_method_that_is_none_is_an_error() {
    let client = Client::new();
    for address in ["", "host", "http://host:1", "a b:1", ":1"] {
        assert!(client.net.generate(address, b"", None, 1, LONG, LONG).is_err(), "{address:?}");
    }
    assert!(client.net.unary("127.0.0.1:1", "a b", b"", 1, LONG).is_err());
}

#[test]
fn a_call_starts_when_it_is_submitted() {
    let server = Server::new(|_| vec![Step::Request, data(b"ok"), fine()]);
    let mut client = Client::new();
    let open = |tag| client.net.generate(&server.address, b"request", None, tag, LONG, LONG).unwrap();
    let (kept, cancelled, _other) = (open(1), open(2), open(3));
    std::thread::sleep(Duration::from_millis(50));
    assert!(server.seen.lock().unwrap().requests.is_empty());
    cancelled.cancel();
    client.net.submit();
    assert_eq!((client.end(1).code, client.end(3).code), (OK, OK));
    assert_eq!(server.seen.lock().unwrap().requests.len(), 2);
    assert!(client.told.iter().all(|event| event.tag != 2));
    kept.cancel();
}
