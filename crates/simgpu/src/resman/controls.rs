//! `RM_CONTROL`: which object a command addresses, and what it does.

use rm::{Abi, Decision, Kind, Status, class, ctrl, layout};

use super::clients::Body;
use super::memory::Backing;
use super::{Answer, Call, Rm, status};

impl Rm {
    pub(super) fn rm_control(&mut self, call: &mut Call) -> Answer {
        use layout::nvos54 as at;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_OBJECT));
        let command = call.block.u32(at::CMD);
        self.client(call, client)?;
        let entry = self.abi.control(command).ok_or(Status::NOT_SUPPORTED)?;
        if call.block.u32(at::PARAMS_SIZE) != entry.size
            || (entry.size > 0 && call.params.is_none())
        {
            return Err(status::INVALID_PARAM_STRUCT);
        }
        let (object_class, gpu, body) = if handle == client {
            (class::NV01_ROOT, None, Body::Plain)
        } else {
            let object = self.object(call, client, handle)?;
            (object.class, object.gpu, object.body)
        };
        if !addresses(self.abi, command, object_class) {
            return Err(Status::NOT_SUPPORTED);
        }
        let answer = match body {
            Body::Group(group) => self.group_control(call, command, group),
            Body::Channel(channel) => self.channel_control(call, command, channel),
            Body::EventBuffer(id) => self.event_buffer_control(call, command, id),
            Body::ThirdParty(id) if command == ctrl::NV503C_REGISTER_VIDMEM => {
                Some(self.register_vidmem(call, client, id))
            }
            Body::ThirdParty(id) if command == ctrl::NV503C_UNREGISTER_VIDMEM => {
                Some(self.unregister_vidmem(call, id))
            }
            _ => None,
        };
        let answer = answer
            .or_else(|| self.client_control(call, command, client))
            .or_else(|| gpu.and_then(|gpu| self.gpu_control(call, command, client, gpu)));
        answer.unwrap_or(match entry.decision {
            Decision::Refuse(status) => Err(status),
            // Questions whose answers no program here reads: the parameters stay as they were asked.
            _ => Ok(()),
        })
    }

    fn group_control(&mut self, call: &mut Call, command: u32, group: u64) -> Option<Answer> {
        Some(match command {
            ctrl::NVA06C_GPFIFO_SCHEDULE => {
                let enable = call.params().u8(layout::gpfifo_schedule::B_ENABLE) != 0;
                self.schedule_group(group, enable)
            }
            ctrl::NVA06C_SET_TIMESLICE => {
                let us = call.params().u64(layout::timeslice::TIMESLICE_US);
                self.set_slice(group, us)
            }
            ctrl::NVA06C_PREEMPT => Ok(()),
            _ => return None,
        })
    }

    fn channel_control(&mut self, call: &mut Call, command: u32, channel: u64) -> Option<Answer> {
        Some(match command {
            ctrl::NVA06F_GPFIFO_SCHEDULE => {
                let enable = call.params().u8(layout::gpfifo_schedule::B_ENABLE) != 0;
                self.schedule_channel(channel, enable)
            }
            ctrl::NVA06F_STOP_CHANNEL => self.stop_channel(channel),
            ctrl::NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN => {
                let number = self
                    .channels
                    .get(&channel)
                    .map_or(0, |channel| channel.number);
                call.params().put_u32(0, number);
                Ok(())
            }
            _ => return None,
        })
    }

    fn client_control(&mut self, call: &mut Call, command: u32, client: u32) -> Option<Answer> {
        Some(match command {
            ctrl::NV0000_CLIENT_GET_ADDR_SPACE_TYPE => self.address_space_type(call, client),
            ctrl::NV0000_CLIENT_GET_HANDLE_INFO => self.handle_info(call, client),
            ctrl::NV0000_CLIENT_SET_INHERITED_SHARE_POLICY => {
                self.set_inherited_share_policy(call, client)
            }
            ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD => self.export_object(call, client),
            ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD => self.import_object(call, client),
            ctrl::NV0000_OS_UNIX_EXPORT_OBJECTS_TO_FD => self.export_objects(call, client),
            ctrl::NV0000_OS_UNIX_IMPORT_OBJECTS_FROM_FD => self.import_objects(call, client),
            ctrl::NV0000_OS_UNIX_GET_EXPORT_OBJECT_INFO => self.export_info(call),
            _ => return self.node_info(call, command),
        })
    }

    fn gpu_control(
        &mut self,
        call: &mut Call,
        command: u32,
        client: u32,
        gpu: usize,
    ) -> Option<Answer> {
        Some(match command {
            ctrl::NV2080_FIFO_DISABLE_CHANNELS => self.disable_channels(call),
            ctrl::NV208F_FIFO_GET_CHANNEL_STATE => self.channel_state(call),
            ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE => self.set_preemption_mode(call, client),
            ctrl::NV2080_GR_FECS_BIND_EVTBUF_FOR_UID_V2 => self.bind_timeline(call, client, gpu),
            ctrl::NV2080_GR_GET_CURRENT_RESIDENT_CHANNEL => self.resident_channel(call, gpu),
            ctrl::NV0080_FIFO_GET_CHANNELLIST => self.channel_list(call, client),
            _ => return self.gpu_info(call, command, gpu),
        })
    }

    /// `0x00000d01`: {hObject@0, mapFlags@4, type@8}: 1 host memory, 2 device memory, 3 registers.
    fn address_space_type(&mut self, call: &mut Call, client: u32) -> Answer {
        let handle = call.params().u32(0);
        let object = self.object(call, client, handle)?;
        let kind = match object.body {
            Body::Memory(memory) => match self.memories.get(&memory) {
                Some(memory) if memory.gpu.is_some() => 2,
                _ => 1,
            },
            // The page of device state that nvidia-smi maps is host memory; a doorbell page is registers.
            _ if object.class == class::RM_USER_SHARED_DATA => 1,
            _ => 3,
        };
        call.params().put_u32(8, kind);
        Ok(())
    }

    /// `0x00000d02`: what a handle is; index 1 its parent, 2 its class.
    fn handle_info(&mut self, call: &mut Call, client: u32) -> Answer {
        use layout::handle_info as at;
        let handle = call.params().u32(at::H_OBJECT);
        let object = self.object(call, client, handle)?;
        let value = match call.params.as_ref().map(|params| params.u32(at::INDEX)) {
            Some(1) => object.parent,
            Some(2) => object.class,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        call.params().put_u64(at::DATA, u64::from(value));
        Ok(())
    }

    /// Whether memory has bytes at all: a surface of nothing has no properties.
    pub(super) fn surface_info(&self, call: &mut Call, memory: u64) -> Answer {
        match self.memories.get(&memory).map(|memory| &memory.backing) {
            Some(Backing::Nothing) | None => Err(Status::NOT_SUPPORTED),
            Some(_) => {
                call.arrays
                    .iter_mut()
                    .for_each(|list| Rm::zero_entries(&mut list.bytes));
                Ok(())
            }
        }
    }
}

/// Whether a command is for objects of this class: its high half names the class, or the family it belongs to.
fn addresses(abi: &Abi, command: u32, object: u32) -> bool {
    let family = command >> 16;
    let kind = abi.class(object).map_or(Kind::Other, |entry| entry.kind);
    match family {
        0x0000 => kind == Kind::Client,
        0x0041 => kind == Kind::Memory,
        // Channels answer to the family of their own generation and of those before.
        0x906f | 0xa06f | 0xc36f | 0xc56f => kind == Kind::Channel,
        _ => family == object,
    }
}
