//! Bytes that come over the server's socket: whatever they are, decoding them ends, allocates no more than the frame
//! and gives a message that means the same again.
//!
//! `PROPTEST_CASES` says how many cases are tried.

use proptest::prelude::*;
use simgpu::client::Node;
use simgpu::proto::{Reply, Request};
use simgpu::spec::NodeSpec;
use simgpu::work::{Kernel, Op, Work};

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        Just(Node::Control),
        any::<u32>().prop_map(Node::Gpu),
        Just(Node::Uvm)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..64);
    prop_oneof![
        (any::<u64>(), bytes).prop_map(|(dst, bytes)| Op::Write { dst, bytes }),
        any::<(u64, u64)>().prop_map(|(src, len)| Op::Read { src, len }),
        any::<(u64, u64, u64)>().prop_map(|(dst, src, len)| Op::Copy { dst, src, len }),
        any::<(u64, u32, u8, u64)>().prop_map(|(dst, value, width, count)| Op::Fill {
            dst,
            value,
            width,
            count
        }),
        any::<u64>().prop_map(|ns| Op::Launch(Kernel::Spin { ns })),
        any::<(u64, u64, u64)>().prop_map(|(p, n, out)| Op::Launch(Kernel::Sum { p, n, out })),
        Just(Op::Wait),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let block = proptest::collection::vec(any::<u8>(), 0..128);
    let files = proptest::collection::vec(any::<(u64, u64)>(), 0..8);
    prop_oneof![
        node().prop_map(Request::Open),
        (any::<(u32, u64)>(), block.clone()).prop_map(|((request, arg), block)| Request::Ioctl {
            request,
            arg,
            block
        }),
        any::<(u64, u64)>().prop_map(Request::Classify),
        files.prop_map(Request::Released),
        Just(Request::DriverVersion),
        any::<u32>().prop_map(Request::Usage),
        (any::<(u32, u32, bool)>(), op()).prop_map(|((client, channel, wait), op)| {
            Request::Submit(Work {
                client,
                channel,
                wait,
                op,
            })
        }),
        block.prop_map(|bytes| Request::Copied(Ok(bytes))),
        any::<i32>().prop_map(|errno| Request::Copied(Err(errno))),
        any::<bool>().prop_map(Request::Resolved),
    ]
}

/// What an adversary makes of a good frame: some bytes changed, then cut or lengthened.
fn spoiled() -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6);
    let tail = proptest::collection::vec(any::<u8>(), 0..6);
    (
        request(),
        changes,
        any::<prop::sample::Index>(),
        any::<bool>(),
        tail,
    )
        .prop_map(|(request, changes, end, cut, tail)| {
            let mut frame = body(&request.encode());
            for (at, byte) in changes {
                if !frame.is_empty() {
                    let at = at.index(frame.len());
                    frame[at] = byte;
                }
            }
            if cut && !frame.is_empty() {
                frame.truncate(end.index(frame.len()));
            }
            frame.extend(tail);
            frame
        })
}

/// A frame without its length.
fn body(frame: &[u8]) -> Vec<u8> {
    let (length, body) = frame.split_first_chunk().expect("a length");
    assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
    body.to_vec()
}

/// What a frame decodes to, if it does, is written as it was read, up to the byte that stands for "yes".
fn means_one_thing(frame: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(request) = Request::decode(frame) {
        let written = body(&request.encode());
        prop_assert_eq!(written.len(), frame.len(), "{:?}", request);
        // Not the messages themselves: a float that is no number differs from itself.
        let again = Request::decode(&written).map(|request| body(&request.encode()));
        prop_assert_eq!(again, Ok(written));
    }
    if let Ok(reply) = Reply::decode(frame) {
        let written = body(&reply.encode());
        prop_assert_eq!(written.len(), frame.len(), "{:?}", reply);
        let again = Reply::decode(&written).map(|reply| body(&reply.encode()));
        prop_assert_eq!(again, Ok(written));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_survives_the_wire(request in request()) {
        prop_assert_eq!(Request::decode(&body(&request.encode())), Ok(request));
    }

    #[test]
    fn a_spoiled_request_is_malformed_or_another_request(frame in spoiled()) {
        means_one_thing(&frame)?;
    }

    #[test]
    fn any_bytes_are_malformed_or_one_message(frame in proptest::collection::vec(any::<u8>(), 0..96)) {
        means_one_thing(&frame)?;
    }

    #[test]
    fn a_node_is_counted_and_named_or_refused_in_one_line(text in "[0-9]{0,4}[xX]?[A-Za-z0-9\n]{0,6}") {
        match text.parse::<NodeSpec>() {
            Ok(node) => {
                let count: usize = text.split(['x', 'X']).next().unwrap_or_default().parse().expect("a count");
                prop_assert_eq!(node.devices.len(), count);
            }
            Err(refused) => prop_assert_eq!(refused.to_string().lines().count(), 1),
        }
    }
}
