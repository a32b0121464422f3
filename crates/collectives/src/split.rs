//! Groups of some ranks, over the same links.

use fulmen_fabric::{FabricError, OpName, WindowPart};
use fulmen_kernels::Element;

use crate::call::{Call, Composite, Kind};
use crate::deadline::Deadline;
use crate::group::Path;
use crate::messages::Messages;
use crate::operations::require;
use crate::parts::{Parts, digest};
use crate::request::Access;
use crate::team::Team;
use crate::windows::Windows;
use crate::{CollectiveError, Group};

/// What ranks tell each other to split a group: their colour (0 for none) and key, the key of their part of a window and whether
/// they failed to make one.
const WORDS: usize = 4;

impl Group {
    /// Splits the group: those that give the same colour form a group, ordered by their keys, and where these are the same by
    /// their ranks. A rank without a colour is in none. Collective: all ranks of this group call it.
    ///
    /// The new groups have the links of this one, and groups do not disturb one another: they fail alone, and calls of several
    /// may be under way at once, by threads of their own or [started](Group::start). Ranks are named by their numbers in the group, also
    /// those of messages ([`Group::send`]), which are received by the group that sent them.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Fabric`] on all ranks if one cannot map another one's memory, or a pool
    /// has no room for what is under way.
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Group>, CollectiveError> {
        self.split_as(Composite::Split, colour, key)
    }

    /// The group of these ranks of this one, in this order; `None` on all others. Collective: all ranks of this group call it, with
    /// the same list.
    ///
    /// # Errors
    /// As [`Group::split`], and [`CollectiveError::Invalid`], on all ranks, for an empty list, a rank that there is not or one that
    /// is named twice.
    pub fn from_ranks(&self, ranks: &[u32]) -> Result<Option<Group>, CollectiveError> {
        const WHOLE: Composite = Composite::FromRanks;
        let operation = WHOLE.name();
        require(operation, !ranks.is_empty(), || "it names no rank".to_owned())?;
        for (at, rank) in ranks.iter().enumerate() {
            self.check_rank(operation, *rank)?;
            require(operation, !ranks[..at].contains(rank), || format!("rank {rank} is named twice: name each once"))?;
        }
        // The same list gives the same colour.
        let colour = digest(&ranks.iter().map(|rank| *rank as usize).collect::<Vec<_>>());
        let place = ranks.iter().position(|rank| *rank == self.rank());
        let mut lists = vec![0; self.size() as usize];
        self.tell(WHOLE, &[colour], &mut lists)?;
        let other = lists.iter().position(|list| *list != lists[0]);
        require(operation, other.is_none(), || {
            format!("ranks 0 and {} name others: give the same list on all ranks", other.unwrap_or_default())
        })?;
        self.split_as(WHOLE, place.map(|_| 0), place.unwrap_or_default() as i64)
    }

    /// Tells all ranks what each has to say, for what is made of several calls. Says which call of the group it was.
    pub(crate) fn tell<T: Element>(&self, whole: Composite, own: &[T], all: &mut [T]) -> Result<u64, CollectiveError> {
        let call = Call { part_of: Some(whole), ..Call::of::<T>(Kind::AllGather, own.len()) };
        self.run(call, Parts::Equal, Some(own.input()), all.output())
    }

    fn split_as(&self, whole: Composite, colour: Option<u32>, key: i64) -> Result<Option<Group>, CollectiveError> {
        let operation = whole.name();
        let mut deadline = Deadline::new(self.deadline());
        let fabric = self.fabric();
        let maps = !self.kind().apart && fabric.has_windows_among(&[fabric.rank()]);
        let part = (maps && colour.is_some()).then(|| fabric.window_part(Windows::LEN)).transpose();
        let told = [
            colour.map_or(0, |colour| u64::from(colour) + 1),
            key as u64,
            part.as_ref().ok().and_then(Option::as_ref).map_or(0, WindowPart::key),
            u64::from(part.is_err()),
        ];
        let mut all = vec![0; WORDS * self.size() as usize];
        let sequence = self.with_deadline(deadline.left()).tell(whole, &told, &mut all)?;
        let rows: Vec<&[u64]> = all.chunks_exact(WORDS).collect();
        let part = part?;
        if let Some(failed) = rows.iter().position(|row| row[3] != 0) {
            return Err(self.failed_on(operation, failed));
        }
        let mut members: Vec<u32> = (0..self.size()).filter(|rank| rows[*rank as usize][0] == told[0]).collect();
        members.sort_by_key(|rank| rows[*rank as usize][1] as i64);
        let kind = self.kind_of_parts(sequence);
        let form = |deadline: &mut Deadline| -> Result<Option<(Team, Path)>, CollectiveError> {
            if colour.is_none() {
                return Ok(None);
            }
            let ranks: Vec<u32> = members.iter().map(|rank| self.in_fabric(*rank)).collect();
            let team = Team::of(fabric, &ranks).expect("this rank has its own colour");
            if team.size() == 1 {
                return Ok(Some((team, Path::Alone)));
            }
            // Of those whose memory is mapped here, all or some.
            let join = |part: WindowPart, deadline: &mut Deadline| {
                let near = members.iter().filter(|rank| fabric.has_windows_among(&[self.in_fabric(**rank)]));
                let keys: Vec<_> = near.map(|rank| (self.in_fabric(*rank), rows[*rank as usize][2])).collect();
                part.join(&keys, deadline.left())
            };
            let path = match (self.path(), part) {
                (_, Some(part)) if fabric.has_windows_among(team.ranks()) => {
                    let window = join(part, deadline)?;
                    Path::Windows(Windows::new(team.clone(), window, deadline)?)
                }
                (Path::Messages(_), part) => {
                    let nearby = team.placement().zip(part).map(|(placement, part)| {
                        let window = join(part, deadline)?;
                        team.nearby(placement, window, deadline)
                    });
                    Path::Messages(Messages::new(team.clone(), kind.number, nearby.transpose()?)?)
                }
                _ => unreachable!("a group of several ranks has windows or messages"),
            };
            Ok(Some((team, path)))
        };
        let formed = form(&mut deadline);
        // Nobody goes on before all can.
        let mut outcomes = vec![0_u8; self.size() as usize];
        self.with_deadline(deadline.left()).tell(whole, &[u8::from(formed.is_err())], &mut outcomes)?;
        let formed = formed?;
        if let Some(failed) = outcomes.iter().position(|outcome| *outcome != 0) {
            return Err(self.failed_on(operation, failed));
        }
        let split_off = Some((self.recorded(), sequence));
        Ok(formed.map(|(team, path)| Group::over(team, path, kind, self.deadline(), split_off)))
    }

    fn failed_on(&self, op: OpName, rank: usize) -> CollectiveError {
        let problem = "it could not form its new group: see its error".to_owned();
        FabricError::PeerFailed { op, rank: self.in_fabric(rank as u32), problem }.into()
    }
}
