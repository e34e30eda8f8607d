//! Offsets that are not the same on every branch, in bytes. Those that are stand in [`layout`](crate::layout), and the
//! sizes of blocks in the tables of [`Abi`](crate::Abi).

/// A field that some branches do not have.
type Maybe = Option<usize>;

macro_rules! varying {
    ($( $(#[$doc:meta])* $name:ident: $type:ident = $structure:literal { $($field:ident: $at:ty = $header:literal),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\nThe headers call it `", $structure, "`.")]
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $type {
                $(
                    #[doc = concat!("Byte offset of `", $header, "`.")]
                    pub $field: $at,
                )*
            }
        )*

        /// The offsets of one branch.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Layout {
            $( $(#[$doc])* pub $name: $type, )*
        }

        #[cfg(test)]
        impl Layout {
            /// Every field: structure and field as the headers call them, and its offset.
            pub(crate) fn listed(&self) -> Vec<(&'static str, &'static str, Maybe)> {
                vec![$( $( ($structure, $header, self.$name.$field.into()), )* )*]
            }
        }
    };
}

varying! {
    /// Parameters of `RM_MAP_MEMORY_DMA`, behind what every branch has.
    nvos46: Nvos46 = "NVOS46_PARAMETERS" { dma_offset: usize = "dmaOffset", status: usize = "status" }
    /// Parameters of `RM_UNMAP_MEMORY_DMA`, behind what every branch has.
    nvos47: Nvos47 = "NVOS47_PARAMETERS" { status: usize = "status" }
    /// Parameters of `EXPORT_TO_DMABUF_FD`, behind what every branch has.
    export_to_dmabuf_fd: ExportToDmabufFd = "nv_ioctl_export_to_dma_buf_fd_t" {
        handles: usize = "handles", status: usize = "status",
    }
    /// Parameters of `UVM_MAP_EXTERNAL_ALLOCATION`, behind the attributes of the GPUs.
    uvm_map_external: UvmMapExternal = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS" {
        gpu_attributes_count: usize = "gpuAttributesCount", rm_ctrl_fd: usize = "rmCtrlFd",
        h_client: usize = "hClient", h_memory: usize = "hMemory", rm_status: usize = "rmStatus",
    }
    /// Parameters of `UVM_ALLOC_SEMAPHORE_POOL`, behind the attributes of the GPUs.
    uvm_alloc_semaphore_pool: UvmAllocSemaphorePool = "UVM_ALLOC_SEMAPHORE_POOL_PARAMS" {
        gpu_attributes_count: usize = "gpuAttributesCount", rm_status: usize = "rmStatus",
    }
    /// Parameters of `UVM_SET_PREFERRED_LOCATION`, behind what every branch has.
    uvm_set_preferred_location: UvmSetPreferredLocation = "UVM_SET_PREFERRED_LOCATION_PARAMS" {
        rm_status: usize = "rmStatus",
    }
    /// Parameters of `UVM_FREE`. Without a length, the driver frees the whole range that begins at the base.
    uvm_free: UvmFree = "UVM_FREE_PARAMS" { length: Maybe = "length", rm_status: usize = "rmStatus" }
    /// Parameters of `UVM_UNREGISTER_CHANNEL`.
    uvm_unregister_channel: UvmUnregisterChannel = "UVM_UNREGISTER_CHANNEL_PARAMS" {
        gpu_uuid: Maybe = "gpuUuid", h_client: usize = "hClient", h_channel: usize = "hChannel",
        rm_status: usize = "rmStatus",
    }
}
