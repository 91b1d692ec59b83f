//! Calls of which nothing is delivered before a message that comes from elsewhere.

use super::server::{Server, Step};
use super::*;
use crate::net::status::{INTERNAL, OK};

fn held(client: &Client, server: &Server, answer: Option<&Arc<Answer>>) -> Call {
    let answer = answer.map(|answer| (Arc::clone(answer), 0));
    let call = client.net.generate(&server.address, b"request", answer, 1, LONG, LONG).unwrap();
    call.hold();
    client.net.submit();
    call
}

#[test]
fn what_is_given_comes_first_whenever_it_is_given() {
    for late in [false, true] {
        let server = Server::new(|_| said(&["hel", "lo"]));
        let mut client = Client::new();
        let answer = streamed();
        let call = held(&client, &server, Some(&answer));
        if late {
            client.quiet();
            assert!(taken(&answer).is_empty());
        }
        call.give(&chunk("oh "));
        assert_eq!(client.end(1), Status::new(OK, ""));
        assert_eq!(client.fed(1).0, 4);
        assert_eq!(text(&taken(&answer)), ("oh hello".to_owned(), true));
        call.give(&chunk("again"));
        client.quiet();
    }
}

#[test]
fn a_call_without_an_answer_is_held_too() {
    let server = Server::new(|_| vec![data(b"one"), data(b"two"), fine()]);
    let mut client = Client::new();
    let call = held(&client, &server, None);
    client.quiet();
    call.give(b"zero");
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), ["zero", "one", "two"]);
}

#[test]
fn an_end_waits_behind_what_is_held() {
    let broken = Step::Trailers(vec![("grpc-status", "13"), ("grpc-message", "broken")]);
    let server = Server::new(move |_| vec![data(b"one"), broken.clone()]);
    let mut client = Client::new();
    let call = held(&client, &server, None);
    client.quiet();
    call.give(b"zero");
    assert_eq!(client.end(1), Status::new(INTERNAL, "broken"));
    assert_eq!(client.messages(1), ["zero", "one"]);
}

#[test]
fn a_failure_waits_for_nothing() {
    let refusal = vec![("grpc-status", "13"), ("content-type", "application/grpc")];
    let scripts: [Vec<Step>; 2] =
        [vec![data(&complete("abort: no room")), fine()], vec![Step::Only(refusal)]];
    for script in scripts {
        let server = Server::new(move |_| script.clone());
        let mut client = Client::new();
        let answer = streamed();
        let _call = held(&client, &server, Some(&answer));
        client.end(1);
        assert_eq!(client.fed(1), (0, 0));
    }
}

#[test]
fn what_is_held_is_bounded_and_can_be_withdrawn() {
    let server = Server::new(|_| (0..2000).map(|_| data(&chunk(LINE))).chain([Step::Hold]).collect());
    let mut client = Client::new();
    let answer = streamed();
    let call = held(&client, &server, Some(&answer));
    client.quiet();
    let sent = || server.seen.lock().unwrap().sent.get(&0).copied().unwrap_or_default();
    soon(|| sent() > 0);
    std::thread::sleep(SHORT);
    assert!(sent() <= 512 << 10, "{} bytes", sent());
    assert!(call.withdraw());
    soon(|| !server.seen.lock().unwrap().resets.is_empty());
    call.give(&chunk("late"));
    client.quiet();
    assert!(taken(&answer).is_empty());
}

#[test]
fn what_is_held_is_not_silent() {
    let server = Server::new(|_| vec![data(b"one"), Step::Pause(SHORT), data(b"two"), fine()]);
    let mut client = Client::new();
    let call = client.net.generate(&server.address, b"request", None, 1, PATIENT, PATIENT).unwrap();
    call.hold();
    client.net.submit();
    std::thread::sleep(PATIENT + SHORT);
    call.give(b"zero");
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), ["zero", "one", "two"]);
}
