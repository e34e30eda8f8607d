//! Changing a slice that runs: what is asked of its supervisor over a socket in the registry's folder, and by whom.
//!
//! One request a connection, one answer. Nobody is waited for: a client that says nothing is hung up on. Who connects is
//! judged (`peer.rs`) at once, and again when the request is here: it comes with a number that was told after the
//! process was pinned down, so it was sent by that process and not by one that has its number now.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::peer;
use crate::seqpacket::{self, Peer};
use crate::sys;

/// Ending of a socket's name in the registry's folder.
pub const SOCKET: &str = "sock";
/// A client has so long to say what it wants: it has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest message.
const LONGEST: usize = 16 << 10;
/// Clients that are heard at once.
const PLACES: usize = 4;
/// Descriptors to wait for.
pub const WATCHED: usize = PLACES + 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Other terms.
    Set(Terms),
    /// None of its work runs any more.
    Pause,
    /// It runs again.
    Resume,
    /// It ends: its command is asked to, and killed after a while.
    Stop {
        /// Killed at once.
        now: bool,
    },
}

/// Terms to change; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Its part of a card's time against others, 1 to 10000.
    pub weight: Option<u32>,
    /// A ceiling on its part of a card's time in hundredths of a percent; zero: none.
    pub cap: Option<u16>,
    /// Memory on each of its cards, as a user writes it.
    pub memory: Option<String>,
    /// Quotas may sum above the cards' sizes.
    pub overcommit: bool,
}

/// How a slice stands after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its weight.
    pub weight: u32,
    /// Its cap in hundredths of a percent.
    pub cap: Option<u16>,
    /// None of its work runs.
    pub paused: bool,
    /// Quota by device UUID.
    pub memory: Vec<(String, u64)>,
    /// What was asked for where it holds more than that.
    pub asked: Vec<(String, u64)>,
}

/// What a supervisor says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Say what you want, with this number.
    Ask(u64),
    /// No, and why.
    Refused(String),
    /// Done.
    Done(Standing),
    /// The slice has ended, and `run` with this status.
    Stopped(i32),
}

#[derive(Serialize, Deserialize)]
struct Request {
    number: u64,
    wish: Wish,
}

/// Asks the supervisor of a slice, and waits so long for each of its words.
///
/// # Errors
/// Nobody listens, or what came is no answer.
pub fn ask(folder: &Path, name: &str, wish: Wish, patience: Duration) -> io::Result<Answer> {
    let socket = seqpacket::connect(folder, &socket_name(name), patience)?;
    let number = match answer_from(&socket)? {
        Answer::Ask(number) => number,
        other => return Ok(other),
    };
    let request = Request { number, wish };
    sys::send_message(socket.as_fd(), &serde_json::to_vec(&request)?, None)?;
    answer_from(&socket)
}

fn answer_from(socket: &OwnedFd) -> io::Result<Answer> {
    let mut text = vec![0u8; LONGEST];
    match sys::receive_message(socket.as_fd(), &mut text) {
        Ok((0, _)) => Err(io::Error::other("its supervisor hung up")),
        Ok((n, _)) => Ok(serde_json::from_slice(&text[..n])?),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other("its supervisor does not answer"))
        }
        Err(e) => Err(e),
    }
}

fn socket_name(name: &str) -> String {
    format!("{name}.{SOCKET}")
}

/// The supervisor's side.
pub struct Control {
    listener: OwnedFd,
    path: PathBuf,
    places: [Option<Client>; PLACES],
    last_id: u64,
}

/// Somebody who may change the slice, as far as could be seen when he connected.
struct Client {
    id: u64,
    socket: OwnedFd,
    peer: Peer,
    pidfd: OwnedFd,
    number: u64,
    /// When he is hung up on; `None`: he has asked and waits for the answer.
    until: Option<Instant>,
}

impl Control {
    /// Listens for a slice.
    ///
    /// # Errors
    /// No socket can be made there.
    pub fn listen(folder: &Path, name: &str) -> io::Result<Control> {
        let name = socket_name(name);
        let path = folder.join(&name);
        let listener = seqpacket::listen(folder, &name).map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("cannot listen at {}: {e}", path.display()),
            )
        })?;
        Ok(Control {
            listener,
            path,
            places: Default::default(),
            last_id: 0,
        })
    }

    /// What to wait for. `busy`: no request is taken now.
    pub fn watched(&self, busy: bool) -> [(RawFd, i16); WATCHED] {
        let mut watched = [(-1, 0); WATCHED];
        if self.places.iter().any(Option::is_none) {
            watched[0] = (self.listener.as_raw_fd(), libc::POLLIN);
        }
        for (place, watched) in self.places.iter().zip(&mut watched[1..]) {
            if let Some(client) = place {
                let asks = client.until.is_some() && !busy;
                let events = if asks { libc::POLLIN } else { 0 };
                *watched = (client.socket.as_raw_fd(), events);
            }
        }
        watched
    }

    /// When the next client that says nothing is hung up on.
    pub fn due(&self) -> Option<Instant> {
        let clients = self.places.iter().flatten();
        clients.filter_map(|client| client.until).min()
    }

    /// Takes what has come, and hangs up on who is late; while it is `busy`, nobody is. The request of one client, if there
    /// is one: answer it.
    ///
    /// # Errors
    /// The kernel gives no random number.
    pub fn serve(&mut self, events: &[i16], busy: bool) -> io::Result<Option<(u64, Wish)>> {
        if events[0] != 0 {
            self.take()?;
        }
        let now = Instant::now();
        let mut found = None;
        for (place, &events) in self.places.iter_mut().zip(&events[1..]) {
            let Some(client) = place else { continue };
            let hung_up = events & (libc::POLLHUP | libc::POLLERR) != 0;
            if busy {
                client.until = client.until.map(|_| now + PATIENCE);
            }
            let late = client.until.is_some_and(|until| until <= now);
            if events & libc::POLLIN != 0 && found.is_none() {
                match client.request() {
                    Ok(wish) => {
                        client.until = None;
                        found = Some((client.id, wish));
                    }
                    Err(why) => {
                        client.answer(&Answer::Refused(why));
                        *place = None;
                    }
                }
            } else if hung_up || late {
                *place = None;
            }
        }
        Ok(found)
    }

    /// Takes a connection.
    fn take(&mut self) -> io::Result<()> {
        let Ok((socket, peer)) = seqpacket::accept(self.listener.as_fd()) else {
            return Ok(());
        };
        let Some(place) = self.places.iter_mut().find(|place| place.is_none()) else {
            return Ok(());
        };
        // Whoever has gone already wants nothing.
        let Ok(pidfd) = sys::pidfd_open(peer.pid, 0) else {
            return Ok(());
        };
        self.last_id += 1;
        let client = Client {
            id: self.last_id,
            socket,
            peer,
            pidfd,
            number: random()?,
            until: Some(Instant::now() + PATIENCE),
        };
        match peer::refusal(peer.pid, peer.uid) {
            Some(why) => client.answer(&Answer::Refused(why)),
            None => {
                client.answer(&Answer::Ask(client.number));
                *place = Some(client);
            }
        }
        Ok(())
    }

    /// Answers a client, unless he has gone.
    pub fn answer(&mut self, id: u64, answer: &Answer) {
        for place in &mut self.places {
            if let Some(client) = place.take_if(|client| client.id == id) {
                client.answer(answer);
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It may have gone with the folder.
        let _removed = fs::remove_file(&self.path);
    }
}

impl Client {
    fn answer(&self, answer: &Answer) {
        // He may have gone, and his buffer is empty but for this.
        let _sent = serde_json::to_vec(answer)
            .map_err(io::Error::from)
            .and_then(|text| seqpacket::send(self.socket.as_fd(), &text));
    }

    /// What has come from this client, if he may ask for it.
    fn request(&self) -> Result<Wish, String> {
        let mut text = vec![0u8; LONGEST];
        let (n, sender) = seqpacket::receive(self.socket.as_fd(), &mut text)
            .map_err(|e| format!("no request came: {e}"))?;
        let request: Request = serde_json::from_slice(&text[..n]).map_err(|e| {
            format!("this is no request ({e}): another version of gpuslice may have sent it")
        })?;
        if sender != Some(self.peer.pid) || request.number != self.number {
            return Err("whoever connected has to ask himself".into());
        }
        if let Some(why) = peer::refusal(self.peer.pid, self.peer.uid) {
            return Err(why);
        }
        // All of this was about the process that connected only if it is still there.
        if !self.is_there() {
            return Err("whoever asks has to wait for the answer".into());
        }
        Ok(request.wish)
    }

    fn is_there(&self) -> bool {
        matches!(
            sys::poll([(self.pidfd.as_raw_fd(), libc::POLLIN)], 0),
            Ok([0])
        )
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is live and as long as is said. So few bytes come whole or not at all.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n != bytes.len() as isize {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Supervisor {
        control: Control,
        folder: PathBuf,
    }

    impl Supervisor {
        fn new(name: &str) -> Supervisor {
            let name = format!("gpuslice-control-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            let control = Control::listen(&folder, "a").unwrap();
            Supervisor { control, folder }
        }

        /// One turn of its loop: whoever asks.
        fn turn(&mut self, busy: bool) -> Option<(u64, Wish)> {
            let events = sys::poll(self.control.watched(busy), 50).unwrap();
            self.control.serve(&events, busy).unwrap()
        }

        /// A client that has been told the number.
        fn client(&mut self) -> (OwnedFd, u64) {
            let patience = Duration::from_secs(5);
            let socket = seqpacket::connect(&self.folder, "a.sock", patience).unwrap();
            assert_eq!(self.turn(false), None);
            let Answer::Ask(number) = answer_from(&socket).unwrap() else {
                panic!("refused");
            };
            (socket, number)
        }
    }

    impl Drop for Supervisor {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.folder);
        }
    }

    fn say(socket: &OwnedFd, number: u64) {
        let wish = Wish::Pause;
        let text = serde_json::to_vec(&Request { number, wish }).unwrap();
        sys::send_message(socket.as_fd(), &text, None).unwrap();
    }

    #[test]
    fn who_asks_is_answered_once() {
        let mut supervisor = Supervisor::new("once");
        let (socket, number) = supervisor.client();
        say(&socket, number);
        assert_eq!(supervisor.turn(true), None, "not while it is busy");
        let (client, wish) = supervisor.turn(false).unwrap();
        assert_eq!(wish, Wish::Pause);
        let answer = Answer::Stopped(3);
        supervisor.control.answer(client, &answer);
        assert_eq!(answer_from(&socket).unwrap(), answer);
        assert!(answer_from(&socket).is_err(), "it hung up");
        let path = supervisor.folder.join("a.sock");
        assert!(path.exists());
        drop(supervisor);
        assert!(!path.exists());
    }

    /// A request that was on its way before the process was pinned down may be another's with its number.
    #[test]
    fn a_request_without_the_number_is_refused() {
        let mut supervisor = Supervisor::new("number");
        let (socket, number) = supervisor.client();
        say(&socket, number.wrapping_add(1));
        assert_eq!(supervisor.turn(false), None);
        assert!(matches!(answer_from(&socket).unwrap(), Answer::Refused(_)));
    }

    /// Somebody who may connects, and lets somebody else ask.
    #[test]
    fn a_request_of_another_process_is_refused() {
        let mut supervisor = Supervisor::new("another");
        let (socket, number) = supervisor.client();
        let Some(child) = sys::fork().unwrap() else {
            say(&socket, number);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        };
        sys::wait_for(child).unwrap();
        assert_eq!(supervisor.turn(false), None);
        assert!(matches!(answer_from(&socket).unwrap(), Answer::Refused(_)));
    }

    #[test]
    fn who_asks_and_does_not_wait_is_not_heard() {
        let mut supervisor = Supervisor::new("gone");
        let patience = Duration::from_secs(5);
        let Some(child) = sys::fork().unwrap() else {
            let socket = seqpacket::connect(&supervisor.folder, "a.sock", patience);
            if let Ok(socket) = socket
                && let Ok(Answer::Ask(number)) = answer_from(&socket)
            {
                say(&socket, number);
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        };
        while supervisor.control.places.iter().all(Option::is_none) {
            assert_eq!(supervisor.turn(false), None);
        }
        // It has ended, and nobody has its number yet.
        let pidfd = sys::pidfd_open(child, 0).unwrap();
        sys::poll([(pidfd.as_raw_fd(), libc::POLLIN)], 5000).unwrap();
        assert_eq!(supervisor.turn(false), None);
        sys::wait_for(child).unwrap();
    }

    #[test]
    fn who_says_nothing_is_hung_up_on_and_no_more_are_taken_than_can_be_heard() {
        let mut supervisor = Supervisor::new("silent");
        let clients: Vec<_> = (0..PLACES).map(|_| supervisor.client()).collect();
        assert_eq!(supervisor.control.watched(false)[0].0, -1);
        let due = supervisor.control.due().unwrap();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        assert_eq!(supervisor.turn(false), None);
        assert!(answer_from(&clients[0].0).is_err());
        let (socket, number) = supervisor.client();
        say(&socket, number);
        assert!(supervisor.turn(false).is_some());
    }
}
