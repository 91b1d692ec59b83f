//! What is fed, what is told of it, and what happens when nobody takes it.

use super::server::{Server, Step};
use super::*;
use crate::net::status::OK;
use crate::stream::{ALL_DONE, CHOICE_DONE, FAILED, OUTPUT};

#[test]
fn an_answer_is_fed_and_told_of() {
    let server = Server::new(|_| said(&["hel", "lo", " there"]));
    let mut client = Client::new();
    let answer = streamed();
    let _call = client.generate(&server.address, Some(&answer), 1);
    assert_eq!(client.end(1), Status::new(OK, ""));
    assert_eq!(client.fed(1), (4, OUTPUT | CHOICE_DONE | ALL_DONE));
    assert_eq!(text(&taken(&answer)), ("hello there".to_owned(), true));
    assert!(matches!(client.told.last().unwrap().what, What::Ended(_)));
}

#[test]
fn an_aggregated_answer_is_told_of_at_its_ends_only() {
    let texts = vec!["a"; 500];
    let server = Server::new(move |_| said(&texts));
    let mut client = Client::with(Options { queue_size: 10, ..Options::default() });
    let answer = answer(serde_json::json!({}));
    let _call = client.generate(&server.address, Some(&answer), 1);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.fed(1), (501, CHOICE_DONE | ALL_DONE));
    assert!(client.told.len() <= 3, "{:?}", client.told);
    let result: serde_json::Value = serde_json::from_slice(&answer.lock().stream.result()).unwrap();
    assert_eq!(result["choices"][0]["text"], "a".repeat(500));
}

#[test]
fn a_first_message_that_is_a_failure_is_not_fed() {
    let server = Server::new(|_| vec![data(&complete("abort: no room")), fine()]);
    let mut client = Client::new();
    let answer = streamed();
    let _call = client.generate(&server.address, Some(&answer), 1);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), [complete("abort: no room")]);
    assert_eq!(client.fed(1), (0, 0));
    assert!(answer.lock().stream.failure().is_none());
}

#[test]
fn a_later_failure_is_told_with_its_message() {
    let server = Server::new(|_| {
        vec![data(&chunk("a")), data(&complete("abort: lost")), data(&chunk("b")), Step::Hold]
    });
    let mut client = Client::new();
    let answer = streamed();
    let _call = client.generate(&server.address, Some(&answer), 1);
    let with_failure = |told: &[Event]| {
        told.iter().find_map(|event| match &event.what {
            What::Fed { flags, failed: Some(message), .. } => Some((*flags, message.clone())),
            _ => None,
        })
    };
    client.wait(|told| with_failure(told).is_some());
    let (flags, message) = with_failure(&client.told).unwrap();
    assert_eq!((flags & FAILED, message), (FAILED, complete("abort: lost")));
    assert_eq!(answer.lock().stream.failure(), Some("lost"));
}

#[test]
fn choices_of_one_answer_come_by_calls_of_their_own() {
    let server = Server::new(|number| said(if number == 0 { &["a", "b"] } else { &["c"] }));
    let mut client = Client::new();
    let answer = answer(serde_json::json!({"streaming": true, "choices": 2}));
    let call = |choice: u32| {
        let fed = Some((Arc::clone(&answer), choice));
        client.net.generate(&server.address, b"", fed, choice.into(), LONG, LONG).unwrap()
    };
    let _calls = (call(0), call(1));
    client.net.submit();
    assert_eq!((client.end(0).code, client.end(1).code), (OK, OK));
    assert!(text(&taken(&answer)).1);
}

#[test]
fn an_answer_that_nobody_takes_holds_its_worker_back_and_no_other() {
    const TEXTS: usize = 8000;
    let server = Server::new(|number| match number {
        0..=4 => {
            let burst: Vec<u8> = (0..100).flat_map(|_| framed(&chunk(LINE))).collect();
            let bursts = vec![Step::Data(burst.into()); TEXTS / 100];
            bursts.into_iter().chain([data(&complete("stop")), fine()]).collect()
        }
        _ => said(&["quick"; 50]),
    });
    let size = TEXTS * framed(&chunk(LINE)).len();
    let mut client = Client::with(Options { queue_size: 50, ..Options::default() });
    let slow: Vec<_> = (0..5).map(|_| streamed()).collect();
    let _slow: Vec<_> = slow
        .iter()
        .zip(0..)
        .map(|(answer, tag)| client.patient(&server.address, Some(answer), tag, LONG, PATIENT))
        .collect();
    server.wait(|seen| seen.calls.len() == 5);
    soon(|| slow.iter().all(|answer| answer.lock().is_full(50)));
    std::thread::sleep(PATIENT + SHORT);
    {
        let seen = server.seen.lock().unwrap();
        assert!((0..5).all(|call| seen.sent[&call] < size), "{:?} of {size}", seen.sent);
    }
    // Another call on the same connection has all the room it needs.
    let quick = streamed();
    let _quick = client.generate(&server.address, Some(&quick), 9);
    let mut bytes = Vec::new();
    while ended(&client.told, 9).is_none() {
        let before = client.told.len();
        client.wait(|told| told.len() > before);
        bytes.extend(taken(&quick));
    }
    bytes.extend(taken(&quick));
    assert_eq!(text(&bytes), ("quick".repeat(50), true));
    assert_eq!(server.seen.lock().unwrap().connections, 1);
    // Their own silence was not the worker's; once taken, they come whole.
    assert!((0..5).all(|tag| ended(&client.told, tag).is_none()), "{:?}", client.told);
    let mut bytes = vec![Vec::new(); 5];
    while (0..5).any(|tag| ended(&client.told, tag).is_none()) {
        client.net.fetch(&mut client.told);
        slow.iter().zip(&mut bytes).for_each(|(answer, bytes)| bytes.extend(taken(answer)));
    }
    for (answer, mut bytes) in slow.iter().zip(bytes) {
        bytes.extend(taken(answer));
        assert_eq!(text(&bytes), (LINE.repeat(TEXTS), true));
    }
}

#[test]
fn messages_that_nobody_fetches_are_bounded_too() {
    const COUNT: usize = 3000;
    let server = Server::new(|_| {
        let mut steps = vec![data(&[5; 1000]); COUNT];
        steps.push(fine());
        steps
    });
    let mut client = Client::with(Options { queue_size: 10, ..Options::default() });
    let _call = client.generate(&server.address, None, 1);
    server.wait(|seen| !seen.sent.is_empty());
    std::thread::sleep(SHORT * 2);
    let sent = server.seen.lock().unwrap().sent[&0];
    assert!(sent < COUNT * 1005, "{sent}");
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1).len(), COUNT);
}
