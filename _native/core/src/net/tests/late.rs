//! A worker, frame by frame, whose bytes come long after nobody wants them any more.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use super::*;
use crate::net::status::OK;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;

/// `:status: 200` and `content-type: application/grpc`; `grpc-status: 0`. Each name that is no number is literal.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/grpc";
const TRAILERS: &[u8] = b"\0\x0bgrpc-status\x010";

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn read(socket: &mut TcpStream) -> Option<Frame> {
    let mut head = [0; 9];
    socket.read_exact(&mut head).ok()?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload).ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
}

fn write(socket: &mut TcpStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    socket.write_all(&frame).unwrap();
}

/// Serves one connection: tells of each call, and answers nothing before `go` but what the connection needs.
fn serve(listener: &TcpListener, opened: &mpsc::Sender<u32>, answers: impl Fn(u32) -> bool) {
    let mut socket = listener.accept().unwrap().0;
    socket.read_exact(&mut [0; b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()]).unwrap();
    write(&mut socket, SETTINGS, 0, 0, &[]);
    while let Some(frame) = read(&mut socket) {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => write(&mut socket, SETTINGS, ACK, 0, &[]),
            PING if frame.flags & ACK == 0 => write(&mut socket, PING, ACK, 0, &frame.payload),
            HEADERS => {
                write(&mut socket, HEADERS, END_HEADERS, frame.stream, HEAD);
                if answers(frame.stream) {
                    for late in (1..frame.stream).step_by(2) {
                        write(&mut socket, DATA, 0, late, &framed(b"late"));
                    }
                    write(&mut socket, DATA, 0, frame.stream, &framed(b"pong"));
                    write(&mut socket, HEADERS, END_HEADERS | END_STREAM, frame.stream, TRAILERS);
                }
                let _ = opened.send(frame.stream);
            }
            _ => {}
        }
    }
}

#[test]
fn late_bytes_of_many_cancelled_calls_harm_no_other() {
    const CALLS: u32 = 3000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (opened, opening) = mpsc::channel();
    std::thread::spawn(move || serve(&listener, &opened, |stream| stream > 2 * CALLS));
    let mut client = Client::new();
    for tag in 0..CALLS {
        let call = client.generate(&address, None, tag.into());
        opening.recv_timeout(LONG).unwrap();
        drop(call);
    }
    let tag = CALLS.into();
    let _call = client.generate(&address, None, tag);
    assert_eq!(client.end(tag), Status::new(OK, ""));
    assert_eq!(client.messages(tag), ["pong"]);
    let worker = client.net.shared.worker(&address).unwrap();
    assert_eq!(worker.connections(), 1);
}
