//! Which connections are kept when there are more clients than places.
//!
//! A connection without a request in progress can be closed at any time: clients open another. So when all places are taken
//! a new connection replaces such a connection, of the address that has most of them. An address that opens thousands
//! of connections and sends half a head on each thereby keeps only itself out. When every connection has a request
//! in progress, the newcomer gets one of a few reserved places, where health is answered and all else is refused with 503.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http::Method;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::domain::lock;
use crate::telemetry::metrics;

/// Places for those that come when every other one is taken.
const RESERVED: usize = 64;

/// The connections of one listener. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max: usize,
    table: Mutex<Table>,
    /// Connections without a request, and requests other than GET.
    unsettled: TaskTracker,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    places: HashMap<u64, Arc<Place>>,
    reserved: HashMap<u64, Arc<Place>>,
}

/// One connection.
#[derive(Debug)]
struct Place {
    /// The peer's address; of IPv6 the network, for a host has as many addresses there as it likes.
    peer: IpAddr,
    activity: Mutex<Activity>,
    closed: CancellationToken,
    unsettled: TaskTracker,
}

#[derive(Debug)]
struct Activity {
    /// Requests in progress.
    running: usize,
    /// Whether there has been one.
    served: bool,
    /// When the last one began or ended.
    last: Instant,
    /// While there is none.
    idle: Option<TaskTrackerToken>,
}

impl Connections {
    pub(super) fn new(max: usize) -> Self {
        metrics::HTTP_CONNECTION_LIMIT.set(max as u64);
        Self(Arc::new(Inner { max, table: Mutex::default(), unsettled: TaskTracker::new() }))
    }

    /// A place for a connection from `peer`; `None` when there is not even a reserved one.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Seat> {
        let unsettled = self.0.unsettled.clone();
        let activity =
            Activity { running: 0, served: false, last: Instant::now(), idle: Some(unsettled.token()) };
        let place = Arc::new(Place {
            peer: network(peer),
            activity: Mutex::new(activity),
            closed: CancellationToken::new(),
            unsettled,
        });
        let mut table = lock(&self.0.table);
        let is_reserved = !make_room(&mut table.places, self.0.max);
        if is_reserved && !make_room(&mut table.reserved, RESERVED) {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let places = if is_reserved { &mut table.reserved } else { &mut table.places };
        places.insert(id, Arc::clone(&place));
        metrics::HTTP_CONNECTIONS.set(table.places.len() as u64);
        Some(Seat { connections: self.clone(), id, place, is_reserved })
    }

    /// Waits until no connection is without a request, and the only requests are GET.
    pub(super) async fn settled(&self) {
        self.0.unsettled.close();
        self.0.unsettled.wait().await;
    }

    fn leave(&self, id: u64) {
        let mut table = lock(&self.0.table);
        table.places.remove(&id);
        table.reserved.remove(&id);
        metrics::HTTP_CONNECTIONS.set(table.places.len() as u64);
    }
}

/// Whether there is a free place, if need be after a connection without a request was closed.
fn make_room(places: &mut HashMap<u64, Arc<Place>>, max: usize) -> bool {
    if places.len() < max {
        return true;
    }
    // The address with most connections that can be closed; of those, one that never sent a request, the oldest first.
    let mut idle: HashMap<IpAddr, (usize, (bool, u64))> = HashMap::new();
    for (id, place) in places.iter() {
        let activity = lock(&place.activity);
        if activity.running > 0 {
            continue;
        }
        let (count, first) = idle.entry(place.peer).or_insert((0, (activity.served, *id)));
        *count += 1;
        *first = (*first).min((activity.served, *id));
    }
    let Some((_, (_, id))) = idle.into_values().max_by_key(|(count, (_, id))| (*count, u64::MAX - id)) else {
        return false;
    };
    if let Some(place) = places.remove(&id) {
        place.closed.cancel();
        metrics::HTTP_CONNECTIONS_CLOSED.add(&["crowded"], 1);
    }
    true
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Connections,
    id: u64,
    place: Arc<Place>,
    /// Whether it is one of those for health and refusals.
    pub(super) is_reserved: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.leave(self.id);
    }
}

impl Seat {
    /// What counts the requests of this connection.
    pub(super) fn requests(&self) -> Requests {
        Requests(Arc::clone(&self.place))
    }

    /// Returns when the connection has to go: someone else has its place, or it had no request for this long.
    pub(super) async fn closed(&self, idle: Duration) {
        let unused = async {
            loop {
                let until = {
                    let activity = lock(&self.place.activity);
                    if activity.running > 0 { Instant::now() + idle } else { activity.last + idle }
                };
                if until <= Instant::now() {
                    return;
                }
                tokio::time::sleep_until(until).await;
            }
        };
        tokio::select! {
            () = self.place.closed.cancelled() => {}
            () = unused => metrics::HTTP_CONNECTIONS_CLOSED.add(&["idle"], 1),
        }
    }
}

/// Counts the requests of one connection.
#[derive(Debug, Clone)]
pub(super) struct Requests(Arc<Place>);

impl Requests {
    /// A request that is in progress until the value is dropped.
    pub(super) fn begin(&self, method: &Method) -> Running {
        let unsettled = (*method != Method::GET).then(|| self.0.unsettled.token());
        let mut activity = lock(&self.0.activity);
        activity.running += 1;
        activity.served = true;
        activity.last = Instant::now();
        activity.idle = None;
        Running { place: Arc::clone(&self.0), _unsettled: unsettled }
    }
}

/// A request that is in progress.
#[derive(Debug)]
pub(super) struct Running {
    place: Arc<Place>,
    _unsettled: Option<TaskTrackerToken>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut activity = lock(&self.place.activity);
        activity.running -= 1;
        activity.last = Instant::now();
        if activity.running == 0 {
            activity.idle = Some(self.place.unsettled.token());
        }
    }
}

/// A body that keeps something until it has been sent or is dropped.
pub(super) struct Holding<T> {
    body: Body,
    _kept: T,
}

impl<T: Send + Unpin + 'static> Holding<T> {
    /// `body`, with `kept` for as long.
    pub(super) fn body(body: Body, kept: T) -> Body {
        Body::new(Self { body, _kept: kept })
    }
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(seat: &Seat) -> bool {
        seat.place.closed.is_cancelled()
    }

    #[tokio::test]
    async fn the_address_with_most_idle_connections_makes_room() {
        let connections = Connections::new(4);
        let quiet = connections.admit(address("10.0.0.1")).unwrap();
        let busy = connections.admit(address("10.0.0.9")).unwrap();
        let _running = busy.requests().begin(&Method::POST);
        let flood: Vec<Seat> = (0..5).map(|_| connections.admit(address("10.0.0.9")).unwrap()).collect();
        assert_eq!(flood.iter().map(is_closed).collect::<Vec<_>>(), [true, true, true, false, false]);
        assert!(!is_closed(&quiet) && !is_closed(&busy));
        assert!(flood.iter().all(|seat| !seat.is_reserved));
        // A connection that has been of use goes last.
        drop(flood[3].requests().begin(&Method::POST));
        let other = connections.admit(address("10.0.0.2")).unwrap();
        assert!(is_closed(&flood[4]) && !is_closed(&flood[3]) && !other.is_reserved);
    }

    #[tokio::test]
    async fn when_all_are_busy_there_is_a_reserved_place_and_then_none() {
        let connections = Connections::new(2);
        let seats: Vec<Seat> = (0..2).map(|_| connections.admit(address("10.0.0.1")).unwrap()).collect();
        let _running: Vec<Running> = seats.iter().map(|seat| seat.requests().begin(&Method::POST)).collect();
        let reserved: Vec<Seat> =
            (0..RESERVED).map(|_| connections.admit(address("10.0.0.2")).unwrap()).collect();
        assert!(reserved.iter().all(|seat| seat.is_reserved));
        let next = connections.admit(address("10.0.0.3")).unwrap();
        assert!(next.is_reserved && is_closed(&reserved[0]), "those are closed for others too");
        let refusing: Vec<Running> =
            reserved.iter().chain([&next]).map(|seat| seat.requests().begin(&Method::POST)).collect();
        assert!(connections.admit(address("10.0.0.4")).is_none());
        drop(seats);
        assert!(!connections.admit(address("10.0.0.4")).unwrap().is_reserved);
        drop(refusing);
    }

    #[test]
    fn an_address_of_ipv6_is_its_network() {
        assert_eq!(network(address("2001:db8:1:2:3:4:5:6")), address("2001:db8:1:2::"));
        assert_eq!(network(address("::ffff:10.0.0.7")), address("10.0.0.7"));
    }
}
