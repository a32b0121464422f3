//! What strikes nodes and links: partitions, pauses, links that break, deaths, and those that come back.

use std::time::Duration;

use super::{Checked, Draw, Partition, RETRIES, World};
use crate::network::{Carrier, EndId, Happening, MICRO, MILLI, Time};
use crate::random::Dice;
use crate::report::Broken;
use crate::schedule::Choice;
use crate::share::Share;

impl World<'_> {
    /// Chooses what strikes at this step.
    pub(crate) fn strike(&mut self) -> Checked {
        let choice = Choice::Strike { step: self.step };
        let mut dice = self.dice(Draw::Strike, &[self.step]);
        let faults = &self.options.faults;
        let shares = [faults.partition, faults.pause, faults.cut, faults.kill, faults.rejoin];
        let Some(which) = shares.iter().position(|share| dice.chance(*share)) else { return Ok(()) };
        if !self.keeps(choice) {
            return Ok(());
        }
        match which {
            0 => self.part(choice, &mut dice),
            1 => self.pause(choice, &mut dice),
            2 => return self.cut(choice, &mut dice),
            3 => return self.kill(choice, &mut dice),
            _ => return self.rejoin(choice, &mut dice),
        }
        Ok(())
    }

    /// How long something lasts: mostly short, sometimes longer than links bear.
    fn lasting(dice: &mut Dice) -> Time {
        let most = [MILLI, 10 * MILLI, 10 * MILLI, 150 * MILLI][dice.index(4)];
        100 * MICRO + dice.below(most)
    }

    fn part(&mut self, choice: Choice, dice: &mut Dice) {
        let all = (1 << self.nodes.len()) - 1;
        let nodes = dice.below(all) & all;
        let until = self.clock.now + Self::lasting(dice);
        if nodes == 0 || self.partition.is_some() {
            return;
        }
        let number = self.step;
        let partition = Partition { number, nodes, until };
        self.partition = Some(partition);
        self.counts.partition += 1;
        self.clock.plan(until, Happening::Heal { partition: number });
        let now = self.clock.now;
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            if (nodes >> pair.nodes[0] ^ nodes >> pair.nodes[1]) & 1 == 0 {
                continue;
            }
            pair.struck = Some(until);
            if pair.carrier != Carrier::Unreliable && until - now > RETRIES {
                let generation = pair.generation;
                for side in 0..2 {
                    let at = now + RETRIES + side as Time * 50 * MICRO;
                    self.clock.plan(at, Happening::Lost { end: EndId { pair: index, side }, generation });
                }
            }
        }
        let names: Vec<_> =
            (0..self.nodes.len()).filter(|node| nodes >> node & 1 == 1).map(|node| node.to_string()).collect();
        let lasts = Duration::from_nanos(until - now);
        self.tell(choice, &[], || format!("rank {} cannot reach the others for {lasts:?}", names.join(" and rank ")));
    }

    fn pause(&mut self, choice: Choice, dice: &mut Dice) {
        let node = dice.index(self.nodes.len());
        let until = self.clock.now + Self::lasting(dice);
        if !self.nodes[node].alive || self.nodes[node].paused > self.clock.now {
            return;
        }
        self.nodes[node].paused = until;
        self.counts.pause += 1;
        for pair in self.pairs.iter_mut().filter(|pair| pair.nodes.contains(&node)) {
            pair.struck = Some(until);
        }
        self.clock.plan(until, Happening::Wake { node });
        let lasts = Duration::from_nanos(until - self.clock.now);
        self.tell(choice, &[node], || format!("rank {node} does nothing for {lasts:?}"));
    }

    fn cut(&mut self, choice: Choice, dice: &mut Dice) -> Checked {
        let index = dice.index(self.pairs.len());
        let first = dice.index(2);
        let pair = &mut self.pairs[index];
        if !pair.open {
            return Ok(());
        }
        pair.struck = Some(self.clock.now);
        let nodes = pair.nodes;
        self.counts.cut += 1;
        self.tell(choice, &nodes, || format!("the link between rank {} and rank {} breaks", nodes[0], nodes[1]));
        self.sever(EndId { pair: index, side: first })
    }

    fn kill(&mut self, choice: Choice, dice: &mut Dice) -> Checked {
        let node = dice.index(self.nodes.len());
        if !self.nodes[node].alive || self.nodes.iter().filter(|node| node.alive).count() == 1 {
            return Ok(());
        }
        self.counts.kill += 1;
        self.tell(choice, &[node], || format!("rank {node} dies"));
        self.digest.add(&[3, self.clock.now, node as u64]);
        let dead = &mut self.nodes[node];
        (dead.alive, dead.paused) = (false, 0);
        dead.inbox.clear();
        dead.watched.clear();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let end = self.end_of(node, other);
            let now = self.clock.now;
            self.close_book(end);
            let pair = &mut self.pairs[end.pair];
            // Its memory stays for as long as somebody maps it; its books end here.
            if pair.ends[end.side].take().is_some() {
                (pair.struck, pair.killed[end.side]) = (Some(now), true);
                self.after(end)?;
            }
        }
        self.stale[node] = self.nodes[node].share.take().map(|share| share.keys.data);
        let blocks = self.nodes[node].pool.stats().blocks;
        if blocks > 0 {
            return Err(self.failure(Broken::Release, format!("{blocks} buffers of rank {node} outlive it")));
        }
        Ok(())
    }

    fn rejoin(&mut self, choice: Choice, dice: &mut Dice) -> Checked {
        let dead: Vec<usize> = (0..self.nodes.len()).filter(|node| !self.nodes[*node].alive).collect();
        if dead.is_empty() {
            return Ok(());
        }
        let node = dead[dice.index(dead.len())];
        let revived = &mut self.nodes[node];
        revived.alive = true;
        revived.share = Some(Share::new(&revived.pool, self.stale.len(), self.stale[node]));
        self.counts.rejoin += 1;
        self.tell(choice, &[node], || format!("rank {node} comes back"));
        self.digest.add(&[4, self.clock.now, node as u64]);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let end = self.end_of(node, other);
            // Whoever has not noticed yet does so now.
            self.sever(end.peer())?;
            let at = self.clock.now + dice.below(200 * MICRO);
            self.clock.plan(at, Happening::Connect { pair: end.pair });
        }
        Ok(())
    }
}
