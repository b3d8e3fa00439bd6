//! Kept turns against a model that knows each by name; and their wheel, with time that is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sluice_core::health::Report;
use sluice_core::testing;
use sluice_core::verdict::Keep;
use sluice_engine_sdk::wire::{EngineId, TransferId};
use sluice_transfer::protocol::Peer;

use sluice_core::history::scope::Scope;
use sluice_core::kept::found;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Secrets};
use crate::fleet::Fleet;
use crate::handle::back::BackHandle;
use crate::request::Endpoint;

const POOL: &str = "
    [transfer]
    socket = '/nowhere/kv.sock'
    [[pool]]
    name = 'main'
    model = 'm'
    mode = 'host-managed'
    worker = [
        { name = 'p0', role = 'prefill', url = 'http://h:1' },
        { name = 'd0', role = 'decode', url = 'http://h:2' },
        { name = 'd1', role = 'decode', url = 'http://h:3' },
    ]";

/// Workers of a pool, and time that is told.
struct Bench {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
}

impl Bench {
    fn new() -> Self {
        let config = config::parse(Path::new("sluice.toml"), POOL).expect("valid");
        let clock = SystemClock::shared();
        let fleet = Fleet::new(&config, &Secrets::default(), &clock, &Metrics::default());
        Self { pool: fleet.pools()[0].clone(), clock }
    }

    fn decode(&self, number: usize) -> &Arc<Worker> {
        &self.pool.workers[1 + number]
    }

    fn turn(&self, number: u64, holder: usize, keep: Keep, now_ms: u64) -> KeptTurn {
        let holder = self.decode(holder);
        let tokens = 10 + number as u32;
        KeptTurn {
            blocks: Blocks::Hosted(Hosted {
                transfer: TransferId(number.into()),
                engine: holder.name.clone(),
                life: Peer { engine: EngineId::of_name(&holder.name), incarnation: 1 },
            }),
            holder: holder.clone(),
            tokens,
            lease: Lease::new(keep, now_ms),
            mark: None,
            policy: "p".into(),
            pool: self.pool.clone(),
            request: testing::table(&[]).request.into(),
            seed: 0,
            counted: Arc::new(HeldTokens::new(holder, tokens, holder.hold_handle(&self.clock, 0))),
        }
    }

    fn held(&self) -> (u64, u32) {
        let workers = || self.pool.workers.iter();
        let handles = workers().map(|worker| worker.live_handles(self.clock.elapsed()));
        (workers().map(|worker| worker.held_tokens()).sum(), handles.sum())
    }
}

fn key(conversation: u8) -> ConversationKey {
    let scope = Scope {
        tenant: "t".to_owned(),
        model: "m".to_owned(),
        adapter: None,
        salt: None,
        endpoint: "/v1/chat/completions".into(),
    };
    ConversationKey::named(&Arc::new(scope), conversation.to_string())
}

fn hold(blocks: &Blocks) -> u128 {
    match blocks {
        Blocks::Hosted(hosted) => hosted.transfer.0,
        Blocks::Engine(_) => panic!("of another kind"),
    }
}

/// Takes what a conversation would be given.
fn take(kept: &KeptTurns, key: &ConversationKey) -> Option<KeptTurn> {
    let found = found::of_history(&kept.of(key), None, 0)?;
    kept.take(key, found.number)
}

/// Holds that were released, and policies that answer as they are told.
#[derive(Default)]
struct Told {
    now_ms: AtomicU64,
    released: Mutex<Vec<u128>>,
    /// For so long a policy renews; 0 for not at all.
    renews_for_ms: AtomicU64,
    /// Holds that are no more.
    lost: Mutex<BTreeSet<u128>>,
    renewed: Mutex<Vec<(u128, u64)>>,
}

impl Holders for Told {
    fn release(&self, turn: &KeptTurn) {
        self.released.lock().expect("no panic").push(hold(&turn.blocks));
    }
}

impl wheel::World for Told {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn asked(&self, _: &ConversationKey, _: &KeptTurn, _: u64) -> Option<u32> {
        u32::try_from(self.renews_for_ms.load(Ordering::Relaxed)).ok().filter(|for_ms| *for_ms > 0)
    }

    async fn renewed(&self, blocks: &Blocks, for_ms: u64) -> bool {
        // Others have their turn while the holder is asked.
        tokio::task::yield_now().await;
        self.renewed.lock().expect("no panic").push((hold(blocks), for_ms));
        !self.lost.lock().expect("no panic").contains(&hold(blocks))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Keep { conversation: u8, holder: usize, keep: Keep },
    Take(u8),
    NotKept(u8),
    Drain(usize),
    Lose(u8),
    PolicyRenewsFor(u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keep = (1..1_000_000_u32, prop::option::of(100..400_000_u32)).prop_map(|(ttl_ms, heartbeat_ms)| {
        Keep { ttl_ms, heartbeat_ms: heartbeat_ms.filter(|heartbeat_ms| *heartbeat_ms < ttl_ms) }
    });
    let step = prop_oneof![
        4 => (0..6_u8, 0..2_usize, keep)
            .prop_map(|(conversation, holder, keep)| Step::Keep { conversation, holder, keep }),
        2 => (0..6_u8).prop_map(Step::Take),
        1 => (0..6_u8).prop_map(Step::NotKept),
        1 => (0..2_usize).prop_map(Step::Drain),
        1 => (0..6_u8).prop_map(Step::Lose),
        1 => prop::option::of(1..1_000_000_u32).prop_map(|ms| Step::PolicyRenewsFor(ms.unwrap_or(0))),
        3 => (0..400_000_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

/// A turn of the model.
#[derive(Debug, Clone)]
struct Modelled {
    number: u64,
    holder: usize,
    lease: Lease,
}

/// What must be: each turn by its conversation, and every hold whose end was told.
#[derive(Default)]
struct Model {
    turns: BTreeMap<u8, Modelled>,
    released: BTreeSet<u128>,
}

impl Model {
    fn end(&mut self, conversation: u8) {
        let ended = self.turns.remove(&conversation);
        self.released.extend(ended.map(|turn| u128::from(turn.number)));
    }

    fn end_oldest_beyond(&mut self, at_most: usize) {
        while self.turns.len() >= at_most {
            let oldest = self.turns.iter().min_by_key(|(_, turn)| turn.number).map(|(key, _)| *key);
            self.end(oldest.expect("there are some"));
        }
    }

    /// As the wheel must leave them, by looking at each one every time that something of it is due.
    fn look(&mut self, told: &Told, now_ms: u64) {
        use sluice_core::lease::Due;
        let (renews_for_ms, lost) =
            (told.renews_for_ms.load(Ordering::Relaxed), told.lost.lock().expect("no panic").clone());
        for (conversation, mut turn) in self.turns.clone() {
            let renewed = match turn.lease.due(now_ms) {
                Due::Nothing => continue,
                Due::Over => false,
                Due::Grant(_) => true,
                Due::Ask if renews_for_ms == 0 => false,
                Due::Ask => {
                    turn.lease.renewed(renews_for_ms as u32, now_ms);
                    true
                }
            };
            let grant_ms = turn.lease.grant_ms(now_ms);
            let goes_on = renewed
                && grant_ms > crate::config::HOLD_MARGIN_MS
                && !lost.contains(&u128::from(turn.number));
            if goes_on {
                turn.lease.granted(grant_ms, now_ms);
                self.turns.insert(conversation, turn);
            } else {
                self.end(conversation);
            }
        }
    }
}

const AT_MOST: usize = 4;

proptest! {
    /// Whatever comes in whatever order: those are kept that must be, each end is told to its holder once, and tokens and
    /// handles are counted for as long as their turn is.
    #[test]
    fn turns_are_kept_as_long_as_they_must_be(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (bench, told, mut model) = (Bench::new(), Told::default(), Model::default());
        let kept = KeptTurns { table: Table::bounded(AT_MOST).into(), ..KeptTurns::new(&Metrics::default(), &[]) };
        let mut number = 0;
        for step in steps {
            let now_ms = told.now_ms.load(Ordering::Relaxed);
            match step {
                Step::Keep { conversation, holder, keep } => {
                    number += 1;
                    model.end(conversation);
                    model.end_oldest_beyond(AT_MOST);
                    let lease = Lease::new(keep, now_ms);
                    model.turns.insert(conversation, Modelled { number, holder, lease });
                    kept.keep(&told, key(conversation), bench.turn(number, holder, keep, now_ms), None);
                }
                Step::Take(conversation) => {
                    let taken = take(&kept, &key(conversation)).map(|turn| hold(&turn.blocks));
                    let expected = model.turns.remove(&conversation).map(|turn| u128::from(turn.number));
                    prop_assert_eq!(taken, expected);
                }
                Step::NotKept(conversation) => {
                    model.end(conversation);
                    kept.end_of(&told, &key(conversation), KeptFate::Superseded);
                }
                Step::Drain(holder) => {
                    let of = model.turns.iter().filter(|(_, turn)| turn.holder == holder);
                    let of: Vec<_> = of.map(|(conversation, _)| *conversation).collect();
                    of.into_iter().for_each(|conversation| model.end(conversation));
                    kept.end_all_of(&told, bench.decode(holder).id, KeptFate::Drained);
                }
                Step::Lose(conversation) => {
                    let lost = model.turns.get(&conversation).map(|turn| u128::from(turn.number));
                    told.lost.lock().expect("no panic").extend(lost);
                }
                Step::PolicyRenewsFor(ms) => told.renews_for_ms.store(ms.into(), Ordering::Relaxed),
                Step::Wait(ms) => {
                    let now_ms = now_ms + ms;
                    told.now_ms.store(now_ms, Ordering::Relaxed);
                    model.look(&told, now_ms);
                    let next_ms = runtime.block_on(wheel::look(&kept, &told));
                    let expected = model.turns.values().map(|turn| turn.lease.due_at_ms()).min();
                    prop_assert_eq!(next_ms, expected);
                    prop_assert!(next_ms.is_none_or(|next_ms| next_ms > now_ms));
                }
            }
            let released = told.released.lock().expect("no panic").clone();
            prop_assert_eq!(released.len(), model.released.len(), "each end is told once");
            prop_assert_eq!(released.into_iter().collect::<BTreeSet<_>>(), model.released.clone());
            let tokens = model.turns.values().map(|turn| 10 + turn.number).sum::<u64>();
            prop_assert_eq!(kept.size(), (model.turns.len(), tokens));
            prop_assert_eq!(bench.held(), (tokens, model.turns.len() as u32));
            for (conversation, turn) in &model.turns {
                let all = kept.of(&key(*conversation));
                let all: Vec<_> = all.iter().map(|(_, turn)| (turn.holder.id, turn.tokens)).collect();
                prop_assert_eq!(all, [(bench.decode(turn.holder).id, 10 + turn.number as u32)]);
            }
        }
    }
}

/// What becomes of a turn while its holder is asked to hold on.
#[tokio::test]
async fn a_turn_that_is_looked_after_is_to_be_had() {
    const KEEP: Keep = Keep { ttl_ms: 30_000, heartbeat_ms: Some(1_000) };
    for (what, left) in [("nothing", 1), ("taken", 0), ("drained", 0), ("not kept", 0), ("kept anew", 1)] {
        let (bench, told) = (Bench::new(), Told::default());
        let kept = KeptTurns::new(&Metrics::default(), &[]);
        kept.keep(&told, key(1), bench.turn(1, 0, KEEP, 0), None);
        told.renews_for_ms.store(30_000, Ordering::Relaxed);
        told.now_ms.store(1_000, Ordering::Relaxed);
        let meanwhile = async {
            match what {
                "taken" => assert!(take(&kept, &key(1)).is_some()),
                "drained" => kept.end_all_of(&told, bench.decode(0).id, KeptFate::Drained),
                "not kept" => kept.end_of(&told, &key(1), KeptFate::Superseded),
                "kept anew" => kept.keep(&told, key(1), bench.turn(2, 1, KEEP, 1_000), None),
                _ => {}
            }
        };
        let (next_ms, ()) = tokio::join!(wheel::look(&kept, &told), meanwhile);
        assert_eq!(*told.renewed.lock().expect("no panic"), [(1, 30_000)], "{what}: it was under way");
        assert_eq!((kept.size().0, next_ms), (left, (left == 1).then_some(2_000)), "{what}");
        let released = told.released.lock().expect("no panic").len();
        assert_eq!(released, usize::from(!matches!(what, "nothing" | "taken")), "{what}");
        assert_eq!(bench.held().1, left as u32, "{what}");
    }
}

/// What went with its engine is no more when the engine's next life is there, and that one's own turns are.
#[test]
fn turns_go_with_the_life_of_their_engine() {
    use crate::fleet::attachment::{Attachment, tests::attached};
    const KEEP: Keep = Keep { ttl_ms: 30_000, heartbeat_ms: None };
    let (bench, told) = (Bench::new(), Told::default());
    let kept = KeptTurns::new(&Metrics::default(), &[]);
    let lives = |incarnation| {
        let holder = bench.decode(0);
        let peer = Peer { engine: EngineId::of_name(&holder.name), incarnation };
        let engine = sluice_transfer::node::AttachedEngine { peer, ..attached() };
        holder.seen().attachment = Attachment::Attached(engine.into());
        peer
    };
    let turn = |number, life| {
        let mut turn = bench.turn(number, 0, KEEP, 0);
        if let Blocks::Hosted(hosted) = &mut turn.blocks {
            hosted.life = life;
        }
        turn
    };
    let life = lives(1);
    kept.keep(&told, key(1), turn(1, life), None);
    kept.end_lost(&told);
    assert_eq!(kept.size().0, 1);
    let life = lives(2);
    kept.keep(&told, key(2), turn(2, life), None);
    kept.end_lost(&told);
    assert_eq!(*told.released.lock().expect("no panic"), [1]);
    bench.decode(0).seen().attachment = Attachment::Missing;
    kept.end_lost(&told);
    assert_eq!((kept.size(), bench.held()), ((0, 0), (0, 0)));
}

/// Room is made by those that would end first.
#[test]
fn who_would_end_first_makes_room() {
    let (bench, told) = (Bench::new(), Told::default());
    let kept = KeptTurns::new(&Metrics::default(), &[]);
    for (number, ttl_ms) in [(1, 30_000), (2, 10_000), (3, 20_000)] {
        let keep = Keep { ttl_ms, heartbeat_ms: None };
        kept.keep(&told, key(number as u8), bench.turn(number, 0, keep, 0), None);
    }
    kept.make_room(&told, bench.decode(1).id, 1);
    kept.make_room(&told, bench.decode(0).id, 13);
    assert_eq!(*told.released.lock().expect("no panic"), [2, 3]);
}

fn place(usable_until_ms: u64, incarnation: u32) -> Place {
    const HANDLE: &str = r#"{"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_num_tokens":9}"#;
    Place {
        handle: BackHandle::read(HANDLE).expect("a handle"),
        started_s: None,
        incarnation,
        endpoint: Endpoint::Chat,
        usable_until_ms,
    }
}

/// What nobody can have let go counts with its worker until its engine's own time is over, or the engine is another.
#[test]
fn what_stays_counts_until_its_engine_lets_it_go() {
    let bench = Bench::new();
    let holder = bench.decode(0);
    let now_ms = crate::clock::millis(bench.clock.elapsed());
    for (stays, in_ms, left, later) in [
        (None, 0, (0, 0), (0, 0)),
        (Some(0), 60_000, (7, 1), (0, 0)),
        // Of another life of its engine.
        (Some(9), 60_000, (0, 0), (0, 0)),
    ] {
        let counted = HeldTokens::new(holder, 7, holder.hold_handle(&bench.clock, 0));
        assert_eq!(bench.held(), (7, 1));
        if let Some(incarnation) = stays {
            counted.stay_at(&place(now_ms + in_ms, incarnation));
        }
        drop(counted);
        assert_eq!(bench.held(), left, "{stays:?}");
        let ends = Duration::from_millis(place(now_ms + in_ms, 0).ends_ms());
        assert_eq!(holder.live_handles(ends - Duration::from_millis(1)), left.1, "{stays:?}");
        assert_eq!((holder.live_handles(ends), bench.held()), (0, later), "{stays:?}");
    }
    let counted = HeldTokens::new(holder, 7, holder.hold_handle(&bench.clock, 0));
    counted.stay_at(&place(now_ms + 60_000, 0));
    drop(counted);
    // Its engine comes up, for all that is known anew.
    bench.pool.report(holder, Report::ProbeOk);
    assert_eq!(bench.held(), (0, 0));
}

/// However many are let go at once, as when a host starts again or stops: each waits for room.
#[tokio::test]
async fn more_turns_than_may_wait_are_let_go() {
    const TURNS: usize = 5_000;
    let bench = Bench::new();
    let (pool, holder) = (bench.pool.clone(), bench.decode(0).clone());
    let counted = Arc::new(HeldTokens::new(&holder, 7, holder.hold_handle(&bench.clock, 0)));
    let turn = || EndedTurn {
        place: place(0, 0),
        pool: pool.clone(),
        holder: holder.clone(),
        counted: counted.clone(),
    };
    let (releases, mut waiting) = release::queue();
    let mut turns: Vec<_> = (0..TURNS).map(|_| turn()).collect();
    let taking = async {
        for _ in 0..TURNS {
            waiting.recv().await.expect("one more");
        }
    };
    tokio::join!(releases.end_all(&mut turns), taking);
    assert!(turns.is_empty());
    drop(waiting);
    turns.push(turn());
    releases.end_all(&mut turns).await;
    assert_eq!(turns.len(), 1, "nobody ends any more");
}
