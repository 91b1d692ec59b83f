//! How many connections there are, and when they go.

use super::server::{Order, Server, Step};
use super::*;
use crate::net::status::{OK, UNAVAILABLE};

fn ping_pong() -> Vec<Step> {
    vec![data(b"pong"), fine()]
}

#[test]
fn calls_share_a_connection_up_to_the_most() {
    let server = Server::new(|_| vec![Step::Hold]);
    let client = Client::with(Options { max_streams: 3, ..Options::default() });
    let _calls: Vec<_> = (0..7).map(|tag| client.generate(&server.address, None, tag)).collect();
    server.wait(|seen| seen.calls.len() == 7);
    assert_eq!(server.seen.lock().unwrap().connections, 3);
}

#[test]
fn the_worker_s_own_limit_is_kept() {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1);
    let server = Server::with(builder, |_| vec![data(b"one"), Step::Pause(SHORT), fine()]);
    let mut client = Client::new();
    let _calls: Vec<_> = (0..4).map(|tag| client.generate(&server.address, None, tag)).collect();
    for tag in 0..4 {
        assert_eq!(client.end(tag).code, OK);
    }
    let connections = server.seen.lock().unwrap().connections;
    assert!((2..=4).contains(&connections), "{connections}");
    // All of them are free again.
    let _call = client.generate(&server.address, None, 9);
    assert_eq!(client.end(9).code, OK);
    assert_eq!(server.seen.lock().unwrap().connections, connections);
}

#[test]
fn there_is_a_bound_beyond_which_calls_wait() {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1);
    let server = Server::with(builder, |_| ping_pong());
    let mut client = Client::new();
    let _calls: Vec<_> = (0..300).map(|tag| client.generate(&server.address, None, tag)).collect();
    for tag in 0..300 {
        assert_eq!(client.end(tag).code, OK);
    }
    assert!(server.seen.lock().unwrap().connections <= 64);
}

#[test]
fn extra_connections_go_when_nobody_needs_them() {
    let server = Server::new(|_| vec![data(b"one"), Step::Pause(SHORT), fine()]);
    let options = Options { max_streams: 1, keepalive_time_ms: 150, ..Options::default() };
    let mut client = Client::with(options);
    let _calls: Vec<_> = (0..3).map(|tag| client.generate(&server.address, None, tag)).collect();
    for tag in 0..3 {
        assert_eq!(client.end(tag).code, OK);
    }
    let worker = client.net.shared.worker(&server.address).unwrap();
    soon(|| worker.connections() == 1);
    let _call = client.generate(&server.address, None, 9);
    assert_eq!(client.end(9).code, OK);
}

#[test]
fn nobody_there_is_said_with_the_address() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut client = Client::new();
    let _calls: Vec<_> = (0..20).map(|tag| client.generate(&gone, None, tag)).collect();
    for tag in 0..20 {
        let status = client.end(tag);
        assert_eq!(status.code, UNAVAILABLE);
        let start = format!("connect to {gone} failed: ");
        assert!(status.details.starts_with(&start), "{}", status.details);
    }
}

#[test]
fn a_name_is_looked_up() {
    let server = Server::new(|_| ping_pong());
    let mut client = Client::new();
    let address = server.address.replace("127.0.0.1", "localhost");
    let _call = client.generate(&address, None, 1);
    assert_eq!(client.end(1).code, OK);
}

#[test]
fn a_worker_that_does_not_answer_a_connection_is_given_up() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = dead.local_addr().unwrap().to_string();
    let mut client = Client::with(Options { connect_timeout_ms: 80, ..Options::default() });
    let _call = client.generate(&address, None, 1);
    let words = format!("connect to {address} failed: no answer within 80 ms");
    assert_eq!(client.end(1), Status::new(UNAVAILABLE, words));
}

#[test]
fn a_handshake_that_hangs_is_given_up() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = dead.local_addr().unwrap().to_string();
    let tls = Some(crate::net::tls::Options::default());
    let mut client = Client::with(Options { connect_timeout_ms: 80, tls, ..Options::default() });
    let _call = client.generate(&format!("grpcs://{address}"), None, 1);
    let words = format!("connect to {address} failed: no answer within 80 ms");
    assert_eq!(client.end(1), Status::new(UNAVAILABLE, words));
}

#[test]
fn a_url_has_a_scheme_that_we_can_speak() {
    let call = |client: &Client, url: &str| {
        client.net.generate(url, b"", None, 1, LONG, LONG).err().map(|error| error.message)
    };
    let plain = Client::new();
    let words = |url: &str, why: &str| Some(format!("The worker \"{url}\" cannot be called: {why}."));
    assert_eq!(call(&plain, "grpc://127.0.0.1:1"), None);
    assert_eq!(call(&plain, "grpcs://127.0.0.1:1"), words("grpcs://127.0.0.1:1", "TLS was not set up"));
    assert_eq!(call(&plain, "127.0.0.1"), words("127.0.0.1", "it is no HOST:PORT"));
    let options = Options { tls: Some(crate::net::tls::Options::default()), ..Options::default() };
    let client = Client::with(options);
    assert_eq!(call(&client, "grpcs://[::1]:1"), None);
    for wrong in ["http://127.0.0.1:1", "grpcs://", "grpcs://:1", "grpcs://127.0.0.1"] {
        assert_eq!(call(&client, wrong), words(wrong, "it is no HOST:PORT"));
    }
}

#[test]
fn a_worker_that_comes_back_is_found() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut client = Client::new();
    let _first = client.generate(&gone.to_string(), None, 1);
    assert_eq!(client.end(1).code, UNAVAILABLE);
    let server = Server::at(gone, h2::server::Builder::new(), |_| ping_pong());
    std::thread::sleep(Duration::from_millis(250));
    let _second = client.generate(&server.address, None, 2);
    assert_eq!(client.end(2).code, OK);
}

#[test]
fn a_connection_that_goes_away_ends_its_calls_well_and_takes_no_others() {
    let server = Server::new(|number| match number {
        0 => vec![data(b"one"), Step::Order(Order::GoAway), Step::Pause(PATIENT), data(b"two"), fine()],
        _ => ping_pong(),
    });
    let mut client = Client::new();
    let _first = client.generate(&server.address, None, 1);
    client.wait(|told| !told.is_empty());
    let worker = client.net.shared.worker(&server.address).unwrap();
    soon(|| !worker.takes_calls());
    let _second = client.generate(&server.address, None, 2);
    assert_eq!(client.end(2).code, OK);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(client.messages(1), ["one", "two"]);
    assert_eq!(server.seen.lock().unwrap().connections, 2);
}

#[test]
fn an_unanswered_ping_ends_the_connection_and_its_calls() {
    let server = Server::new(|_| vec![data(b"one"), Step::Order(Order::Freeze), Step::Hold]);
    let options = Options { keepalive_time_ms: 60, keepalive_timeout_ms: 80, ..Options::default() };
    let mut client = Client::with(options);
    let _call = client.generate(&server.address, None, 1);
    let status = client.end(1);
    assert_eq!(status.code, UNAVAILABLE);
    assert!(status.details.ends_with("a keepalive ping was not answered within 80 ms"), "{}", status.details);
}

#[test]
fn answered_pings_disturb_nobody() {
    let server = Server::new(|_| vec![data(b"one"), Step::Pause(SHORT * 3), data(b"two"), fine()]);
    let mut client = Client::with(Options { keepalive_time_ms: 20, ..Options::default() });
    let _call = client.generate(&server.address, None, 1);
    assert_eq!(client.end(1).code, OK);
    assert_eq!(server.seen.lock().unwrap().connections, 1);
}

#[test]
fn a_forgotten_worker_s_calls_end_and_it_may_come_again() {
    let server = Server::new(|number| if number == 0 { vec![data(b"one"), Step::Hold] } else { ping_pong() });
    let mut client = Client::new();
    let _first = client.generate(&server.address, None, 1);
    client.wait(|told| !told.is_empty());
    client.net.forget(&server.address);
    let status = client.end(1);
    assert_eq!(status.code, UNAVAILABLE);
    assert!(status.details.ends_with("the worker was removed"), "{}", status.details);
    assert_eq!(client.net.heard(&server.address), -1);
    let _second = client.generate(&server.address, None, 2);
    assert_eq!(client.end(2).code, OK);
}

#[test]
fn the_end_of_the_transport_ends_everything() {
    let server = Server::new(|_| vec![data(&chunk("a")), Step::Hold]);
    let mut client = Client::new();
    let answer = streamed();
    let call = client.generate(&server.address, Some(&answer), 1);
    client.wait(|told| !told.is_empty());
    let shared = Arc::downgrade(&client.net.shared);
    drop(client);
    soon(|| Arc::strong_count(&answer) == 2);
    assert_eq!(shared.strong_count(), 0);
    call.cancel();
    drop(call);
    assert_eq!(Arc::strong_count(&answer), 1);
}

#[test]
fn nothing_is_left_of_many_calls() {
    let server =
        Server::new(
            |number| if number % 2 == 0 { said(&["a", "b"]) } else { vec![data(&chunk("a")), Step::Hold] },
        );
    let mut client = Client::new();
    let answer = streamed();
    for round in 0..20 {
        let calls: Vec<_> =
            (0..10).map(|tag| client.generate(&server.address, Some(&answer), round * 10 + tag)).collect();
        let first = round * 10;
        client.wait(|told| (first..first + 10).all(|tag| told.iter().any(|event| event.tag == tag)));
        drop(calls);
        client.told.clear();
    }
    soon(|| Arc::strong_count(&answer) == 1);
    client.net.fetch(&mut client.told);
    let worker = client.net.shared.worker(&server.address).unwrap();
    soon(|| (worker.connections(), worker.calls()) == (1, 0));
    // The table of workers, and this.
    soon(|| Arc::strong_count(&worker) == 2);
}
