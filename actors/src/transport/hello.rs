//! The greeting of a lane: who opens it, by what right, in which membership.
//!
//! Both ends start with the same eight bytes of magic and a version, so that a stranger or another version is told so
//! in a sentence. The client's hello has a fixed head of 78 bytes and its machine's name behind it; the server's
//! welcome has a fixed head of 38 bytes and a text, which is its machine's name or the reason of a refusal.

use greengnn_model::row_type::RowType;

use super::frame::ProtocolError;
use super::{MachineId, Ticket};

const MAGIC: [u8; 8] = *b"GREENGNN";
const VERSION: u16 = 1;
/// Feature bit: every frame carries a CRC-32C of its body.
const CHECKSUMS: u32 = 1;

/// What a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LanePurpose {
    /// Requests for rows and samples, answered one by one.
    Reads = 1,
    /// Parcels, in one direction.
    Parcels = 2,
}

/// What the opener of a lane says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub purpose: LanePurpose,
    /// How the opener wants rows encoded.
    pub row_type: RowType,
    pub checksums: bool,
    /// Payload bytes of a reply frame that the opener takes.
    pub chunk_bytes: u32,
    pub ticket: Ticket,
    pub machine: MachineId,
    pub membership_epoch: u64,
}

/// What the listener answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Accepted { checksums: bool, machine: MachineId },
    Refused { status: Status, reason: String },
}

/// How a greeting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Accepted = 0,
    NotGreenGnn = 1,
    OtherVersion = 2,
    BadTicket = 3,
    StaleMembership = 4,
    Full = 5,
    Misshapen = 6,
    OtherRowType = 7,
}

const STATUSES: [Status; 8] = [
    Status::Accepted,
    Status::NotGreenGnn,
    Status::OtherVersion,
    Status::BadTicket,
    Status::StaleMembership,
    Status::Full,
    Status::Misshapen,
    Status::OtherRowType,
];

impl Hello {
    pub const HEAD_BYTES: usize = 78;

    pub fn encode(&self) -> Vec<u8> {
        let name = cut(&self.machine.name, MachineId::MAX_NAME_BYTES);
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + name.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(self.purpose as u8);
        bytes.push(name.len() as u8);
        bytes.extend([row_type_code(self.row_type), 0]);
        bytes.extend(features(self.checksums).to_le_bytes());
        bytes.extend(self.chunk_bytes.to_le_bytes());
        bytes.extend(self.ticket.as_bytes());
        bytes.extend(self.machine.incarnation.to_le_bytes());
        bytes.extend(self.membership_epoch.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(name.as_bytes());
        bytes
    }

    /// Length of the name that follows `head`, once magic and version are right.
    pub fn name_bytes(head: &[u8; Self::HEAD_BYTES]) -> Result<usize, (Status, String)> {
        if head[..8] != MAGIC {
            return Err((
                Status::NotGreenGnn,
                "this is a lane of GreenGNN; the greeting is not".into(),
            ));
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err((
                Status::OtherVersion,
                format!(
                    "this machine speaks version {VERSION} of the lane protocol, the greeting is of version {version}"
                ),
            ));
        }
        Ok(usize::from(head[11]))
    }

    pub fn decode(head: &[u8; Self::HEAD_BYTES], name: Vec<u8>) -> Result<Self, (Status, String)> {
        let misshapen = |what: &str| (Status::Misshapen, format!("the greeting has {what}"));
        let purpose = match head[10] {
            1 => LanePurpose::Reads,
            2 => LanePurpose::Parcels,
            _ => return Err(misshapen("an unknown purpose")),
        };
        let row_type = RowType::ALL
            .into_iter()
            .find(|row_type| row_type_code(*row_type) == head[12]);
        let row_type = row_type.ok_or_else(|| misshapen("an unknown row type"))?;
        let name = String::from_utf8(name).map_err(|_| misshapen("a name that is not UTF-8"))?;
        let mut ticket = [0; Ticket::BYTES];
        ticket.copy_from_slice(&head[22..54]);
        Ok(Self {
            purpose,
            row_type,
            checksums: u32_at(head, 14) & CHECKSUMS != 0,
            chunk_bytes: u32_at(head, 18),
            ticket: Ticket::from_bytes(ticket),
            machine: MachineId::new(name, u64_at(head, 54)),
            membership_epoch: u64_at(head, 62),
        })
    }
}

impl Welcome {
    pub const HEAD_BYTES: usize = 38;

    pub fn encode(&self) -> Vec<u8> {
        let (status, checksums, incarnation, text) = match self {
            Self::Accepted { checksums, machine } => (
                Status::Accepted,
                *checksums,
                machine.incarnation,
                cut(&machine.name, MachineId::MAX_NAME_BYTES),
            ),
            Self::Refused { status, reason } => (*status, false, 0, cut(reason, MachineId::MAX_NAME_BYTES)),
        };
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + text.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(status as u8);
        bytes.push(text.len() as u8);
        bytes.extend(0u16.to_le_bytes());
        bytes.extend(features(checksums).to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(incarnation.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(text.as_bytes());
        bytes
    }

    pub fn text_bytes(head: &[u8; Self::HEAD_BYTES]) -> Result<usize, ProtocolError> {
        if head[..8] != MAGIC {
            return Err(ProtocolError::Greeting("it is no lane of GreenGNN".into()));
        }
        Ok(usize::from(head[11]))
    }

    pub fn decode(head: &[u8; Self::HEAD_BYTES], text: Vec<u8>) -> Result<Self, ProtocolError> {
        let text = String::from_utf8(text).map_err(|_| ProtocolError::Greeting("its greeting is not UTF-8".into()))?;
        let status = STATUSES
            .get(usize::from(head[10]))
            .copied()
            .unwrap_or(Status::Misshapen);
        if status != Status::Accepted {
            return Ok(Self::Refused { status, reason: text });
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err(ProtocolError::Greeting(format!(
                "it speaks version {version} of the lane protocol, this machine version {VERSION}"
            )));
        }
        Ok(Self::Accepted {
            checksums: u32_at(head, 14) & CHECKSUMS != 0,
            machine: MachineId::new(text, u64_at(head, 22)),
        })
    }
}

fn row_type_code(row_type: RowType) -> u8 {
    match row_type {
        RowType::F32 => 0,
        RowType::F16 => 1,
        RowType::Bf16 => 2,
        RowType::Int8 => 3,
    }
}

fn features(checksums: bool) -> u32 {
    if checksums { CHECKSUMS } else { 0 }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The longest prefix of at most `limit` bytes that is whole characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            purpose: LanePurpose::Parcels,
            row_type: RowType::Int8,
            checksums: true,
            chunk_bytes: 1 << 20,
            ticket: Ticket::from_bytes([9; 32]),
            machine: MachineId::new("machine-é", 77),
            membership_epoch: 1 << 40,
        }
    }

    #[test]
    fn greetings_survive_the_wire() {
        let bytes = hello().encode();
        let (head, name) = bytes.split_first_chunk().unwrap();
        assert_eq!(Hello::name_bytes(head), Ok(name.len()));
        assert_eq!(Hello::decode(head, name.to_vec()), Ok(hello()));
        for welcome in [
            Welcome::Accepted {
                checksums: true,
                machine: MachineId::new("owner", 3),
            },
            Welcome::Refused {
                status: Status::BadTicket,
                reason: "no".into(),
            },
        ] {
            let bytes = welcome.encode();
            let (head, text) = bytes.split_first_chunk().unwrap();
            assert_eq!(Welcome::text_bytes(head), Ok(text.len()));
            assert_eq!(Welcome::decode(head, text.to_vec()), Ok(welcome));
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_so() {
        let mut bytes = hello().encode();
        bytes[8] = 2;
        let (status, reason) = Hello::name_bytes(bytes.first_chunk().unwrap()).unwrap_err();
        assert_eq!(status, Status::OtherVersion);
        assert!(reason.contains("version 2"), "{reason}");
        bytes[0] = b'X';
        assert_eq!(
            Hello::name_bytes(bytes.first_chunk().unwrap()).unwrap_err().0,
            Status::NotGreenGnn
        );
    }

    #[test]
    fn every_row_type_is_named_and_others_are_refused() {
        for row_type in RowType::ALL {
            let bytes = Hello { row_type, ..hello() }.encode();
            let (head, name) = bytes.split_first_chunk().unwrap();
            assert_eq!(Hello::decode(head, name.to_vec()).unwrap().row_type, row_type);
        }
        let mut bytes = hello().encode();
        bytes[12] = 4;
        let (head, name) = bytes.split_first_chunk().unwrap();
        let (status, reason) = Hello::decode(head, name.to_vec()).unwrap_err();
        assert_eq!(
            (status, &reason[..]),
            (Status::Misshapen, "the greeting has an unknown row type")
        );
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
    }
}
