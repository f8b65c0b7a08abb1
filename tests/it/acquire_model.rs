//! A model of acquire, run, record and take-over: three callers on two replicas, whose ways to the database fail apart,
//! whose pools can be used up, whose leases end, and who die. All schedules are tried, breadth first, so that a trace
//! that breaks a rule is the shortest one.
//!
//! The rules are switches. The ones that the server had once are here to show that the model finds the double run.

use stateright::{Checker, Model, Property};

const CALLERS: usize = 3;
const REPLICAS: usize = 2;
/// Runs, lease ends and deaths in one schedule.
const MAX_RUNS: u8 = 4;
const MAX_LEASE_ENDS: u8 = 2;
const MAX_DEATHS: u8 = 2;

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    Idle,
    Asking,
    Running {
        /// The fencing token that the database gave; 0 for a run that went without it.
        epoch: u8,
        offline: bool,
        /// The database has given the run up: its lease was taken over.
        lost: bool,
    },
    Done,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    calls: [Call; CALLERS],
    /// The row of the run in progress: whose and with which token.
    run: Option<(usize, u8)>,
    run_lease: bool,
    epoch: u8,
    /// Which replica the context was served by last, and whether its lease still runs.
    holder: Option<usize>,
    context_lease: bool,
    remembered: [bool; REPLICAS],
    cut_off: [bool; REPLICAS],
    pool_used_up: [bool; REPLICAS],
    runs: u8,
    recorded: bool,
    stale_record: bool,
    deaths: u8,
    lease_ends: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Ask(usize),
    Answered(usize),
    PoolTimesOut(usize),
    NoAnswer(usize),
    Record(usize),
    Die(usize),
    RunLeaseEnds,
    ContextLeaseEnds,
    CutOff(usize),
    Reconnected(usize),
    PoolUsedUp(usize),
    PoolFree(usize),
}

/// When a replica that takes the database for away runs all the same.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Offline {
    Never,
    /// On what it remembers having served.
    Remembered,
    /// On what it holds by a lease that others respect.
    Leased,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    pool_time_out_is_away: bool,
    records_are_fenced: bool,
    /// All calls carry one idempotency key.
    one_key: bool,
    offline: Offline,
}

/// What the server does.
const RULES: Rules = Rules {
    pool_time_out_is_away: false,
    records_are_fenced: true,
    one_key: false,
    offline: Offline::Leased,
};

fn replica(caller: usize) -> usize {
    caller % REPLICAS
}

impl State {
    fn runs_on(&self, at: usize) -> bool {
        (0..CALLERS).any(|caller| replica(caller) == at && matches!(self.calls[caller], Call::Running { .. }))
    }

    fn runs_offline(&self) -> bool {
        self.calls.iter().any(|call| matches!(call, Call::Running { offline: true, .. }))
    }

    /// Runs that nothing has taken the right from.
    fn rightful_runs(&self) -> usize {
        self.calls.iter().filter(|call| matches!(call, Call::Running { lost: false, .. })).count()
    }
}

impl Rules {
    /// What a replica does that takes the database for away.
    fn go_on_offline(&self, state: &mut State, caller: usize) {
        let at = replica(caller);
        let may = match self.offline {
            Offline::Never => false,
            Offline::Remembered => state.remembered[at],
            Offline::Leased => state.holder == Some(at) && state.context_lease,
        };
        state.calls[caller] = if may && !state.runs_on(at) {
            state.runs += 1;
            Call::Running { epoch: 0, offline: true, lost: false }
        } else {
            Call::Idle
        };
    }

    /// The database's answer to an acquire. `None`: wait.
    fn acquire(&self, state: &mut State, caller: usize) -> Option<()> {
        let at = replica(caller);
        if state.run.is_some() && state.run_lease {
            return None;
        }
        if self.offline == Offline::Leased
            && (state.context_lease && state.holder != Some(at) || state.runs_on(at))
        {
            return None;
        }
        if self.one_key && (state.recorded || state.run.is_some()) {
            state.calls[caller] = Call::Done; // its record, or that it was interrupted
            return Some(());
        }
        if let Some((owner, _)) = state.run
            && let Call::Running { lost, .. } = &mut state.calls[owner]
        {
            *lost = true;
        }
        state.epoch += 1;
        state.run = Some((caller, state.epoch));
        (state.run_lease, state.holder, state.context_lease) = (true, Some(at), true);
        state.remembered[at] = true;
        state.runs += 1;
        state.calls[caller] = Call::Running { epoch: state.epoch, offline: false, lost: false };
        Some(())
    }

    fn record(&self, state: &mut State, caller: usize) -> Option<()> {
        let Call::Running { epoch, offline, .. } = state.calls[caller] else { return None };
        let holds_row = state.run == Some((caller, epoch));
        if !offline && holds_row {
            (state.run, state.run_lease) = (None, false);
        }
        let rightful = offline || holds_row;
        if rightful || !self.records_are_fenced {
            state.recorded = true;
            state.stale_record |= !rightful;
        }
        state.calls[caller] = Call::Done;
        Some(())
    }
}

impl Model for Rules {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            calls: [Call::Idle; CALLERS],
            run: None,
            run_lease: false,
            epoch: 0,
            holder: None,
            context_lease: false,
            remembered: [false; REPLICAS],
            cut_off: [false; REPLICAS],
            pool_used_up: [false; REPLICAS],
            runs: 0,
            recorded: false,
            stale_record: false,
            deaths: 0,
            lease_ends: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for caller in 0..CALLERS {
            let at = replica(caller);
            match state.calls[caller] {
                Call::Idle if state.runs < MAX_RUNS => steps.push(Step::Ask(caller)),
                Call::Asking => {
                    steps.push(if state.cut_off[at] {
                        Step::NoAnswer(caller)
                    } else if state.pool_used_up[at] {
                        Step::PoolTimesOut(caller)
                    } else {
                        Step::Answered(caller)
                    });
                    steps.push(Step::Die(caller));
                }
                Call::Running { .. } => {
                    if !state.cut_off[at] && !state.pool_used_up[at] {
                        steps.push(Step::Record(caller));
                    }
                    steps.push(Step::Die(caller));
                }
                _ => {}
            }
        }
        if state.run.is_some() && state.run_lease && state.lease_ends < MAX_LEASE_ENDS {
            steps.push(Step::RunLeaseEnds);
        }
        // A run without the database ends before the lease on its context does.
        if state.context_lease && state.lease_ends < MAX_LEASE_ENDS && !state.runs_offline() {
            steps.push(Step::ContextLeaseEnds);
        }
        for at in 0..REPLICAS {
            steps.push(if state.cut_off[at] { Step::Reconnected(at) } else { Step::CutOff(at) });
            steps.push(if state.pool_used_up[at] { Step::PoolFree(at) } else { Step::PoolUsedUp(at) });
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Ask(caller) => state.calls[caller] = Call::Asking,
            Step::Answered(caller) => self.acquire(&mut state, caller)?,
            Step::PoolTimesOut(caller) if self.pool_time_out_is_away => {
                self.go_on_offline(&mut state, caller);
            }
            Step::PoolTimesOut(caller) => state.calls[caller] = Call::Idle,
            Step::NoAnswer(caller) => self.go_on_offline(&mut state, caller),
            Step::Record(caller) => self.record(&mut state, caller)?,
            Step::Die(_) if state.deaths == MAX_DEATHS => return None,
            Step::Die(caller) => {
                state.deaths += 1;
                state.calls[caller] = Call::Dead;
            }
            Step::RunLeaseEnds => {
                state.run_lease = false;
                state.lease_ends += 1;
            }
            Step::ContextLeaseEnds => {
                state.context_lease = false;
                state.lease_ends += 1;
            }
            Step::CutOff(at) => state.cut_off[at] = true,
            Step::Reconnected(at) => state.cut_off[at] = false,
            Step::PoolUsedUp(at) => state.pool_used_up[at] = true,
            Step::PoolFree(at) => state.pool_used_up[at] = false,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one run at a time", |_, state: &State| state.rightful_runs() <= 1),
            Property::always("no stale record", |_, state: &State| !state.stale_record),
            Property::always("a key runs once", |rules: &Self, state: &State| {
                !rules.one_key || state.runs <= 1
            }),
            Property::sometimes("a run is recorded", |_, state: &State| state.recorded),
        ]
    }
}

/// Which rule breaks, and that someone gets on at all. Prints how many states there are.
#[expect(clippy::print_stdout, reason = "figures, for `--nocapture`")]
fn broken(name: &str, rules: Rules) -> Vec<&'static str> {
    let checked = rules.checker().threads(1).spawn_bfs().join();
    let mut found = checked.discoveries();
    println!("{name}: {} states, {} steps deep", checked.unique_state_count(), checked.max_depth());
    assert!(found.remove("a run is recorded").is_some(), "{name}: no run ever gets on");
    for (rule, trace) in &found {
        println!("    {rule}: {:?}", trace.clone().into_actions());
    }
    let mut broken: Vec<_> = found.into_keys().collect();
    broken.sort_unstable();
    broken
}

#[test]
fn no_schedule_runs_twice_by_the_rules_that_hold() {
    assert_eq!(broken("as it is", RULES), [""; 0]);
    assert_eq!(broken("never offline", Rules { offline: Offline::Never, ..RULES }), [""; 0]);
    let keyed = Rules { one_key: true, offline: Offline::Never, ..RULES };
    assert_eq!(broken("one key, which never runs offline", keyed), [""; 0]);
}

#[test]
fn the_model_finds_what_each_rule_prevents() {
    const TWICE: &str = "one run at a time";
    let remembered = Rules { offline: Offline::Remembered, ..RULES };
    let before = Rules { pool_time_out_is_away: true, ..remembered };
    assert_eq!(broken("a pool time-out is away, memory is enough", before), [TWICE]);
    assert_eq!(broken("a pool time-out is busy, memory is enough", remembered), [TWICE]);
    let unfenced = Rules { records_are_fenced: false, offline: Offline::Never, ..RULES };
    assert_eq!(broken("records are not fenced", unfenced), ["no stale record"]);
    let keyed = Rules { one_key: true, ..RULES };
    assert_eq!(broken("one key, which runs offline too", keyed), ["a key runs once"]);
}
