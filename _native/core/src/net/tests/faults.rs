//! Workers, connections and streams that fail.

use super::server::{Order, Server, Step};
use super::*;
use crate::net::status::{
    CANCELLED, DEADLINE_EXCEEDED, INTERNAL, OK, RESOURCE_EXHAUSTED, UNAVAILABLE, UNKNOWN,
};
use h2::Reason;

/// The end of a call with this script.
fn end_of(script: Vec<Step>) -> Status {
    let server = Server::new(move |_| script.clone());
    let mut client = Client::new();
    let _call = client.generate(&server.address, None, 1);
    client.end(1)
}

#[test]
fn an_end_without_a_status_is_an_error() {
    assert_eq!(end_of(vec![data(b"one"), Step::End]).code, INTERNAL);
    assert_eq!(end_of(vec![data(b"one"), Step::Trailers(vec![("x", "y")])]).code, UNKNOWN);
    assert_eq!(end_of(vec![Step::Head(502, vec![]), Step::End]).code, UNAVAILABLE);
    assert_eq!(end_of(vec![Step::Head(200, vec![("content-type", "text/html")]), Step::End]).code, UNKNOWN);
}

#[test]
fn an_end_within_a_message_is_an_error() {
    let half = framed(b"message").slice(..8);
    assert_eq!(end_of(vec![Step::Data(half), fine()]).code, INTERNAL);
}

#[test]
fn a_compressed_message_is_refused_after_those_before_it() {
    let server = Server::new(|_| {
        let wire = [&framed(b"one")[..], &[1, 0, 0, 0, 1, 9]].concat();
        vec![Step::Data(wire.into()), Step::Hold]
    });
    let mut client = Client::new();
    let _call = client.generate(&server.address, None, 1);
    let status = client.end(1);
    assert_eq!(status.code, INTERNAL);
    assert!(status.details.contains("compressed"), "{}", status.details);
    assert_eq!(client.messages(1), ["one"]);
    server.wait(|seen| seen.resets == [Reason::CANCEL]);
}

#[test]
fn a_message_that_is_too_long_is_refused() {
    let server = Server::new(|_| vec![data(&[0; 1000]), data(&[0; 1001]), fine()]);
    let mut client = Client::with(Options { message_bytes: 1000, ..Options::default() });
    let _call = client.generate(&server.address, None, 1);
    assert_eq!(client.end(1).code, RESOURCE_EXHAUSTED);
    assert_eq!(client.messages(1).len(), 1);
}

#[test]
fn a_reset_has_the_code_of_its_reason() {
    let reset = |reason| end_of(vec![data(b"one"), Step::Reset(reason)]);
    assert_eq!(reset(Reason::REFUSED_STREAM).code, UNAVAILABLE);
    assert_eq!(reset(Reason::CANCEL).code, CANCELLED);
    assert_eq!(reset(Reason::INTERNAL_ERROR).code, INTERNAL);
    assert_eq!(reset(Reason::ENHANCE_YOUR_CALM).code, RESOURCE_EXHAUSTED);
}

#[test]
fn a_silent_worker_is_given_up() {
    let server = Server::new(|number| match number {
        0 => vec![Step::Hold],
        _ => vec![data(&chunk("a")), Step::Pause(SHORT), data(&chunk("b")), Step::Hold],
    });
    let mut client = Client::new();
    let answers = [streamed(), streamed()];
    let _first = client.patient(&server.address, Some(&answers[0]), 1, SHORT, LONG);
    let silence = |words: &str| Status { silent: true, ..Status::new(DEADLINE_EXCEEDED, words) };
    assert_eq!(client.end(1), silence("nothing came for 0.08 seconds"));
    let _second = client.patient(&server.address, Some(&answers[1]), 2, LONG, PATIENT);
    assert_eq!(client.end(2), silence("nothing came for 1.5 seconds"));
    assert_eq!(text(&taken(&answers[1])).0, "ab");
    server.wait(|seen| seen.resets == [Reason::CANCEL; 2]);
}

#[test]
fn a_cancelled_call_resets_its_stream_and_says_nothing_more() {
    let server = Server::new(|_| vec![data(&chunk("a")), Step::Hold]);
    let mut client = Client::new();
    let answer = streamed();
    let call = client.generate(&server.address, Some(&answer), 1);
    client.wait(|told| !told.is_empty());
    call.cancel();
    call.cancel();
    server.wait(|seen| seen.resets == [Reason::CANCEL]);
    client.quiet();
    drop(call);
    client.quiet();
    soon(|| Arc::strong_count(&answer) == 1);
}

#[test]
fn a_call_is_withdrawn_only_before_anything_was_fed() {
    let server = Server::new(|number| match number {
        0 => vec![Step::Hold],
        _ => vec![data(&chunk("a")), Step::Pause(SHORT), data(&chunk("b")), fine()],
    });
    let mut client = Client::new();
    let answers = [streamed(), streamed()];
    let held = client.generate(&server.address, Some(&answers[0]), 1);
    server.wait(|seen| !seen.calls.is_empty());
    assert!(held.withdraw());
    server.wait(|seen| seen.resets == [Reason::CANCEL]);
    client.quiet();
    assert!(held.withdraw());
    let fed = client.generate(&server.address, Some(&answers[1]), 2);
    client.wait(|told| !told.is_empty());
    assert!(!fed.withdraw());
    assert_eq!(client.end(2).code, OK);
    assert_eq!(text(&taken(&answers[1])).0, "ab");
    assert!(!fed.withdraw());
}

#[test]
fn calls_are_cancelled_wherever_they_are() {
    let server = Server::new(|_| vec![Step::Hold]);
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::new();
    let answer = streamed();
    // Before anything was done, while connecting, while the first message is awaited.
    drop(client.generate(&server.address, Some(&answer), 1));
    let connecting = client.generate(&dead.local_addr().unwrap().to_string(), Some(&answer), 2);
    let waiting = client.generate(&server.address, Some(&answer), 3);
    server.wait(|seen| !seen.calls.is_empty());
    drop((connecting, waiting));
    soon(|| Arc::strong_count(&answer) == 1);
    client.quiet();
}

#[test]
fn a_lost_connection_ends_its_calls_and_the_next_call_connects_anew() {
    let server = Server::new(|number| match number {
        0 => vec![data(b"one"), Step::Order(Order::Close), Step::Hold],
        _ => vec![data(b"two"), fine()],
    });
    let mut client = Client::new();
    let _first = client.generate(&server.address, None, 1);
    let status = client.end(1);
    assert_eq!(status.code, UNAVAILABLE);
    assert!(status.details.contains(&server.address), "{}", status.details);
    let _second = client.generate(&server.address, None, 2);
    assert_eq!(client.end(2).code, OK);
    assert_eq!(server.seen.lock().unwrap().connections, 2);
}

#[test]
fn what_was_fed_stays_when_the_connection_is_lost() {
    let server = Server::new(|_| vec![data(&chunk("ab")), Step::Pause(SHORT), Step::Order(Order::Close)]);
    let mut client = Client::new();
    let answer = streamed();
    let _call = client.generate(&server.address, Some(&answer), 1);
    assert_eq!(client.end(1).code, UNAVAILABLE);
    assert_eq!(text(&taken(&answer)), ("ab".to_owned(), false));
}

#[test]
fn a_panic_while_feeding_ends_the_call_and_no_other() {
    let server = Server::new(|number| match number {
        0 => [data(&chunk("a"))].into_iter().chain(trickle("b")).collect(),
        _ => said(&["fine"]),
    });
    let mut client = Client::new();
    let (bad, good) = (streamed(), streamed());
    let _bad = client.generate(&server.address, Some(&bad), 1);
    client.wait(|told| !told.is_empty());
    let words = bad.lock().guarded::<()>(|_| panic!("boom")).unwrap_err().message;
    assert_eq!(words, "the native core panicked: boom");
    assert_eq!(client.end(1), Status::new(INTERNAL, "the stream failed before"));
    let _good = client.generate(&server.address, Some(&good), 2);
    assert_eq!(client.end(2).code, OK);
    assert_eq!(text(&taken(&good)), ("fine".to_owned(), true));
}

#[test]
fn a_choice_that_there_is_none_of_ends_the_call() {
    let server = Server::new(|_| said(&["a"]));
    let mut client = Client::new();
    let answer = streamed();
    let _call =
        client.net.generate(&server.address, b"", Some((Arc::clone(&answer), 3)), 1, LONG, LONG).unwrap();
    client.net.submit();
    assert_eq!(client.end(1), Status::new(INTERNAL, "There is no choice 3."));
}
