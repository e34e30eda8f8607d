// Generated: do not edit. Facts taken: function names, symbol names and the version each symbol came with.
//
// Source: CUDA driver API 13.0, headers cuda.h and cudaTypedefs.h (and cudaGL, cudaEGL, cudaVDPAU, cudaProfiler
// typedefs) of the Python package nvidia-cuda-runtime 13.0.96. How it was made:
//  1. cuda.h was preprocessed three times (as it is, with `__CUDA_API_VERSION_INTERNAL`, with
//     `CUDA_API_PER_THREAD_DEFAULT_STREAM`); every name declared as `CUresult cuNAME(` is a symbol.
//  2. A symbol is taken apart into base name, `_vN` and `_ptsz`/`_ptds`; every `PFN_BASE_vVERSION[_ptsz|_ptds]`
//     of cudaTypedefs.h names a base and the CUDA version (1000 * major + 10 * minor) of one of its forms.
//  3. Per base and stream form, the n-th version belongs to the n-th `_vN`; the two lists have the same length for
//     every base (the generator stops otherwise).
//  4. cudaGL, cudaEGL, cudaVDPAU and cudaProfiler are read from their typedefs alone, by the same rule.

#[doc(hidden)]
#[macro_export]
macro_rules! for_each_driver_symbol {
    ($callback:ident) => {
        $callback! {
            cuArray3DCreate
            cuArray3DCreate_v2
            cuArray3DGetDescriptor
            cuArray3DGetDescriptor_v2
            cuArrayCreate
            cuArrayCreate_v2
            cuArrayDestroy
            cuArrayGetDescriptor
            cuArrayGetDescriptor_v2
            cuArrayGetMemoryRequirements
            cuArrayGetPlane
            cuArrayGetSparseProperties
            cuCheckpointProcessCheckpoint
            cuCheckpointProcessGetRestoreThreadId
            cuCheckpointProcessGetState
            cuCheckpointProcessLock
            cuCheckpointProcessRestore
            cuCheckpointProcessUnlock
            cuCoredumpGetAttribute
            cuCoredumpGetAttributeGlobal
            cuCoredumpSetAttribute
            cuCoredumpSetAttributeGlobal
            cuCtxAttach
            cuCtxCreate
            cuCtxCreate_v2
            cuCtxCreate_v3
            cuCtxCreate_v4
            cuCtxDestroy
            cuCtxDestroy_v2
            cuCtxDetach
            cuCtxDisablePeerAccess
            cuCtxEnablePeerAccess
            cuCtxFromGreenCtx
            cuCtxGetApiVersion
            cuCtxGetCacheConfig
            cuCtxGetCurrent
            cuCtxGetDevResource
            cuCtxGetDevice
            cuCtxGetDevice_v2
            cuCtxGetExecAffinity
            cuCtxGetFlags
            cuCtxGetId
            cuCtxGetLimit
            cuCtxGetSharedMemConfig
            cuCtxGetStreamPriorityRange
            cuCtxPopCurrent
            cuCtxPopCurrent_v2
            cuCtxPushCurrent
            cuCtxPushCurrent_v2
            cuCtxRecordEvent
            cuCtxResetPersistingL2Cache
            cuCtxSetCacheConfig
            cuCtxSetCurrent
            cuCtxSetFlags
            cuCtxSetLimit
            cuCtxSetSharedMemConfig
            cuCtxSynchronize
            cuCtxSynchronize_v2
            cuCtxWaitEvent
            cuDestroyExternalMemory
            cuDestroyExternalSemaphore
            cuDevResourceGenerateDesc
            cuDevSmResourceSplitByCount
            cuDeviceCanAccessPeer
            cuDeviceComputeCapability
            cuDeviceGet
            cuDeviceGetAttribute
            cuDeviceGetByPCIBusId
            cuDeviceGetCount
            cuDeviceGetDefaultMemPool
            cuDeviceGetDevResource
            cuDeviceGetExecAffinitySupport
            cuDeviceGetGraphMemAttribute
            cuDeviceGetHostAtomicCapabilities
            cuDeviceGetLuid
            cuDeviceGetMemPool
            cuDeviceGetName
            cuDeviceGetNvSciSyncAttributes
            cuDeviceGetP2PAtomicCapabilities
            cuDeviceGetP2PAttribute
            cuDeviceGetPCIBusId
            cuDeviceGetProperties
            cuDeviceGetTexture1DLinearMaxWidth
            cuDeviceGetUuid
            cuDeviceGetUuid_v2
            cuDeviceGraphMemTrim
            cuDevicePrimaryCtxGetState
            cuDevicePrimaryCtxRelease
            cuDevicePrimaryCtxRelease_v2
            cuDevicePrimaryCtxReset
            cuDevicePrimaryCtxReset_v2
            cuDevicePrimaryCtxRetain
            cuDevicePrimaryCtxSetFlags
            cuDevicePrimaryCtxSetFlags_v2
            cuDeviceRegisterAsyncNotification
            cuDeviceSetGraphMemAttribute
            cuDeviceSetMemPool
            cuDeviceTotalMem
            cuDeviceTotalMem_v2
            cuDeviceUnregisterAsyncNotification
            cuDriverGetVersion
            cuEGLStreamConsumerAcquireFrame
            cuEGLStreamConsumerConnect
            cuEGLStreamConsumerConnectWithFlags
            cuEGLStreamConsumerDisconnect
            cuEGLStreamConsumerReleaseFrame
            cuEGLStreamProducerConnect
            cuEGLStreamProducerDisconnect
            cuEGLStreamProducerPresentFrame
            cuEGLStreamProducerReturnFrame
            cuEventCreate
            cuEventCreateFromEGLSync
            cuEventDestroy
            cuEventDestroy_v2
            cuEventElapsedTime
            cuEventElapsedTime_v2
            cuEventQuery
            cuEventRecord
            cuEventRecordWithFlags
            cuEventRecordWithFlags_ptsz
            cuEventRecord_ptsz
            cuEventSynchronize
            cuExternalMemoryGetMappedBuffer
            cuExternalMemoryGetMappedMipmappedArray
            cuFlushGPUDirectRDMAWrites
            cuFuncGetAttribute
            cuFuncGetModule
            cuFuncGetName
            cuFuncGetParamInfo
            cuFuncIsLoaded
            cuFuncLoad
            cuFuncSetAttribute
            cuFuncSetBlockShape
            cuFuncSetCacheConfig
            cuFuncSetSharedMemConfig
            cuFuncSetSharedSize
            cuGLCtxCreate
            cuGLCtxCreate_v2
            cuGLGetDevices
            cuGLGetDevices_v2
            cuGLInit
            cuGLMapBufferObject
            cuGLMapBufferObjectAsync
            cuGLMapBufferObjectAsync_v2
            cuGLMapBufferObjectAsync_v2_ptsz
            cuGLMapBufferObject_v2
            cuGLMapBufferObject_v2_ptds
            cuGLRegisterBufferObject
            cuGLSetBufferObjectMapFlags
            cuGLUnmapBufferObject
            cuGLUnmapBufferObjectAsync
            cuGLUnregisterBufferObject
            cuGetErrorName
            cuGetErrorString
            cuGetExportTable
            cuGetProcAddress
            cuGetProcAddress_v2
            cuGraphAddBatchMemOpNode
            cuGraphAddChildGraphNode
            cuGraphAddDependencies
            cuGraphAddDependencies_v2
            cuGraphAddEmptyNode
            cuGraphAddEventRecordNode
            cuGraphAddEventWaitNode
            cuGraphAddExternalSemaphoresSignalNode
            cuGraphAddExternalSemaphoresWaitNode
            cuGraphAddHostNode
            cuGraphAddKernelNode
            cuGraphAddKernelNode_v2
            cuGraphAddMemAllocNode
            cuGraphAddMemFreeNode
            cuGraphAddMemcpyNode
            cuGraphAddMemsetNode
            cuGraphAddNode
            cuGraphAddNode_v2
            cuGraphBatchMemOpNodeGetParams
            cuGraphBatchMemOpNodeSetParams
            cuGraphChildGraphNodeGetGraph
            cuGraphClone
            cuGraphConditionalHandleCreate
            cuGraphCreate
            cuGraphDebugDotPrint
            cuGraphDestroy
            cuGraphDestroyNode
            cuGraphEventRecordNodeGetEvent
            cuGraphEventRecordNodeSetEvent
            cuGraphEventWaitNodeGetEvent
            cuGraphEventWaitNodeSetEvent
            cuGraphExecBatchMemOpNodeSetParams
            cuGraphExecChildGraphNodeSetParams
            cuGraphExecDestroy
            cuGraphExecEventRecordNodeSetEvent
            cuGraphExecEventWaitNodeSetEvent
            cuGraphExecExternalSemaphoresSignalNodeSetParams
            cuGraphExecExternalSemaphoresWaitNodeSetParams
            cuGraphExecGetFlags
            cuGraphExecHostNodeSetParams
            cuGraphExecKernelNodeSetParams
            cuGraphExecKernelNodeSetParams_v2
            cuGraphExecMemcpyNodeSetParams
            cuGraphExecMemsetNodeSetParams
            cuGraphExecNodeSetParams
            cuGraphExecUpdate
            cuGraphExecUpdate_v2
            cuGraphExternalSemaphoresSignalNodeGetParams
            cuGraphExternalSemaphoresSignalNodeSetParams
            cuGraphExternalSemaphoresWaitNodeGetParams
            cuGraphExternalSemaphoresWaitNodeSetParams
            cuGraphGetEdges
            cuGraphGetEdges_v2
            cuGraphGetNodes
            cuGraphGetRootNodes
            cuGraphHostNodeGetParams
            cuGraphHostNodeSetParams
            cuGraphInstantiate
            cuGraphInstantiateWithFlags
            cuGraphInstantiateWithParams
            cuGraphInstantiateWithParams_ptsz
            cuGraphInstantiate_v2
            cuGraphKernelNodeCopyAttributes
            cuGraphKernelNodeGetAttribute
            cuGraphKernelNodeGetParams
            cuGraphKernelNodeGetParams_v2
            cuGraphKernelNodeSetAttribute
            cuGraphKernelNodeSetParams
            cuGraphKernelNodeSetParams_v2
            cuGraphLaunch
            cuGraphLaunch_ptsz
            cuGraphMemAllocNodeGetParams
            cuGraphMemFreeNodeGetParams
            cuGraphMemcpyNodeGetParams
            cuGraphMemcpyNodeSetParams
            cuGraphMemsetNodeGetParams
            cuGraphMemsetNodeSetParams
            cuGraphNodeFindInClone
            cuGraphNodeGetDependencies
            cuGraphNodeGetDependencies_v2
            cuGraphNodeGetDependentNodes
            cuGraphNodeGetDependentNodes_v2
            cuGraphNodeGetEnabled
            cuGraphNodeGetType
            cuGraphNodeSetEnabled
            cuGraphNodeSetParams
            cuGraphReleaseUserObject
            cuGraphRemoveDependencies
            cuGraphRemoveDependencies_v2
            cuGraphRetainUserObject
            cuGraphUpload
            cuGraphUpload_ptsz
            cuGraphicsEGLRegisterImage
            cuGraphicsGLRegisterBuffer
            cuGraphicsGLRegisterImage
            cuGraphicsMapResources
            cuGraphicsMapResources_ptsz
            cuGraphicsResourceGetMappedEglFrame
            cuGraphicsResourceGetMappedMipmappedArray
            cuGraphicsResourceGetMappedPointer
            cuGraphicsResourceGetMappedPointer_v2
            cuGraphicsResourceSetMapFlags
            cuGraphicsResourceSetMapFlags_v2
            cuGraphicsSubResourceGetMappedArray
            cuGraphicsUnmapResources
            cuGraphicsUnmapResources_ptsz
            cuGraphicsUnregisterResource
            cuGraphicsVDPAURegisterOutputSurface
            cuGraphicsVDPAURegisterVideoSurface
            cuGreenCtxCreate
            cuGreenCtxDestroy
            cuGreenCtxGetDevResource
            cuGreenCtxGetId
            cuGreenCtxRecordEvent
            cuGreenCtxStreamCreate
            cuGreenCtxWaitEvent
            cuImportExternalMemory
            cuImportExternalSemaphore
            cuInit
            cuIpcCloseMemHandle
            cuIpcGetEventHandle
            cuIpcGetMemHandle
            cuIpcOpenEventHandle
            cuIpcOpenMemHandle
            cuIpcOpenMemHandle_v2
            cuKernelGetAttribute
            cuKernelGetFunction
            cuKernelGetLibrary
            cuKernelGetName
            cuKernelGetParamInfo
            cuKernelSetAttribute
            cuKernelSetCacheConfig
            cuLaunch
            cuLaunchCooperativeKernel
            cuLaunchCooperativeKernelMultiDevice
            cuLaunchCooperativeKernel_ptsz
            cuLaunchGrid
            cuLaunchGridAsync
            cuLaunchHostFunc
            cuLaunchHostFunc_ptsz
            cuLaunchKernel
            cuLaunchKernelEx
            cuLaunchKernelEx_ptsz
            cuLaunchKernel_ptsz
            cuLibraryEnumerateKernels
            cuLibraryGetGlobal
            cuLibraryGetKernel
            cuLibraryGetKernelCount
            cuLibraryGetManaged
            cuLibraryGetModule
            cuLibraryGetUnifiedFunction
            cuLibraryLoadData
            cuLibraryLoadFromFile
            cuLibraryUnload
            cuLinkAddData
            cuLinkAddData_v2
            cuLinkAddFile
            cuLinkAddFile_v2
            cuLinkComplete
            cuLinkCreate
            cuLinkCreate_v2
            cuLinkDestroy
            cuLogsCurrent
            cuLogsDumpToFile
            cuLogsDumpToMemory
            cuLogsRegisterCallback
            cuLogsUnregisterCallback
            cuMemAddressFree
            cuMemAddressReserve
            cuMemAdvise
            cuMemAdvise_v2
            cuMemAlloc
            cuMemAllocAsync
            cuMemAllocAsync_ptsz
            cuMemAllocFromPoolAsync
            cuMemAllocFromPoolAsync_ptsz
            cuMemAllocHost
            cuMemAllocHost_v2
            cuMemAllocManaged
            cuMemAllocPitch
            cuMemAllocPitch_v2
            cuMemAlloc_v2
            cuMemBatchDecompressAsync
            cuMemBatchDecompressAsync_ptsz
            cuMemCreate
            cuMemDiscardAndPrefetchBatchAsync
            cuMemDiscardAndPrefetchBatchAsync_ptsz
            cuMemDiscardBatchAsync
            cuMemDiscardBatchAsync_ptsz
            cuMemExportToShareableHandle
            cuMemFree
            cuMemFreeAsync
            cuMemFreeAsync_ptsz
            cuMemFreeHost
            cuMemFree_v2
            cuMemGetAccess
            cuMemGetAddressRange
            cuMemGetAddressRange_v2
            cuMemGetAllocationGranularity
            cuMemGetAllocationPropertiesFromHandle
            cuMemGetDefaultMemPool
            cuMemGetHandleForAddressRange
            cuMemGetInfo
            cuMemGetInfo_v2
            cuMemGetMemPool
            cuMemHostAlloc
            cuMemHostGetDevicePointer
            cuMemHostGetDevicePointer_v2
            cuMemHostGetFlags
            cuMemHostRegister
            cuMemHostRegister_v2
            cuMemHostUnregister
            cuMemImportFromShareableHandle
            cuMemMap
            cuMemMapArrayAsync
            cuMemMapArrayAsync_ptsz
            cuMemPoolCreate
            cuMemPoolDestroy
            cuMemPoolExportPointer
            cuMemPoolExportToShareableHandle
            cuMemPoolGetAccess
            cuMemPoolGetAttribute
            cuMemPoolImportFromShareableHandle
            cuMemPoolImportPointer
            cuMemPoolSetAccess
            cuMemPoolSetAttribute
            cuMemPoolTrimTo
            cuMemPrefetchAsync
            cuMemPrefetchAsync_ptsz
            cuMemPrefetchAsync_v2
            cuMemPrefetchAsync_v2_ptsz
            cuMemPrefetchBatchAsync
            cuMemPrefetchBatchAsync_ptsz
            cuMemRangeGetAttribute
            cuMemRangeGetAttributes
            cuMemRelease
            cuMemRetainAllocationHandle
            cuMemSetAccess
            cuMemSetMemPool
            cuMemUnmap
            cuMemcpy
            cuMemcpy2D
            cuMemcpy2DAsync
            cuMemcpy2DAsync_v2
            cuMemcpy2DAsync_v2_ptsz
            cuMemcpy2DUnaligned
            cuMemcpy2DUnaligned_v2
            cuMemcpy2DUnaligned_v2_ptds
            cuMemcpy2D_v2
            cuMemcpy2D_v2_ptds
            cuMemcpy3D
            cuMemcpy3DAsync
            cuMemcpy3DAsync_v2
            cuMemcpy3DAsync_v2_ptsz
            cuMemcpy3DBatchAsync
            cuMemcpy3DBatchAsync_ptsz
            cuMemcpy3DBatchAsync_v2
            cuMemcpy3DBatchAsync_v2_ptsz
            cuMemcpy3DPeer
            cuMemcpy3DPeerAsync
            cuMemcpy3DPeerAsync_ptsz
            cuMemcpy3DPeer_ptds
            cuMemcpy3D_v2
            cuMemcpy3D_v2_ptds
            cuMemcpyAsync
            cuMemcpyAsync_ptsz
            cuMemcpyAtoA
            cuMemcpyAtoA_v2
            cuMemcpyAtoA_v2_ptds
            cuMemcpyAtoD
            cuMemcpyAtoD_v2
            cuMemcpyAtoD_v2_ptds
            cuMemcpyAtoH
            cuMemcpyAtoHAsync
            cuMemcpyAtoHAsync_v2
            cuMemcpyAtoHAsync_v2_ptsz
            cuMemcpyAtoH_v2
            cuMemcpyAtoH_v2_ptds
            cuMemcpyBatchAsync
            cuMemcpyBatchAsync_ptsz
            cuMemcpyBatchAsync_v2
            cuMemcpyBatchAsync_v2_ptsz
            cuMemcpyDtoA
            cuMemcpyDtoA_v2
            cuMemcpyDtoA_v2_ptds
            cuMemcpyDtoD
            cuMemcpyDtoDAsync
            cuMemcpyDtoDAsync_v2
            cuMemcpyDtoDAsync_v2_ptsz
            cuMemcpyDtoD_v2
            cuMemcpyDtoD_v2_ptds
            cuMemcpyDtoH
            cuMemcpyDtoHAsync
            cuMemcpyDtoHAsync_v2
            cuMemcpyDtoHAsync_v2_ptsz
            cuMemcpyDtoH_v2
            cuMemcpyDtoH_v2_ptds
            cuMemcpyHtoA
            cuMemcpyHtoAAsync
            cuMemcpyHtoAAsync_v2
            cuMemcpyHtoAAsync_v2_ptsz
            cuMemcpyHtoA_v2
            cuMemcpyHtoA_v2_ptds
            cuMemcpyHtoD
            cuMemcpyHtoDAsync
            cuMemcpyHtoDAsync_v2
            cuMemcpyHtoDAsync_v2_ptsz
            cuMemcpyHtoD_v2
            cuMemcpyHtoD_v2_ptds
            cuMemcpyPeer
            cuMemcpyPeerAsync
            cuMemcpyPeerAsync_ptsz
            cuMemcpyPeer_ptds
            cuMemcpy_ptds
            cuMemsetD16
            cuMemsetD16Async
            cuMemsetD16Async_ptsz
            cuMemsetD16_v2
            cuMemsetD16_v2_ptds
            cuMemsetD2D16
            cuMemsetD2D16Async
            cuMemsetD2D16Async_ptsz
            cuMemsetD2D16_v2
            cuMemsetD2D16_v2_ptds
            cuMemsetD2D32
            cuMemsetD2D32Async
            cuMemsetD2D32Async_ptsz
            cuMemsetD2D32_v2
            cuMemsetD2D32_v2_ptds
            cuMemsetD2D8
            cuMemsetD2D8Async
            cuMemsetD2D8Async_ptsz
            cuMemsetD2D8_v2
            cuMemsetD2D8_v2_ptds
            cuMemsetD32
            cuMemsetD32Async
            cuMemsetD32Async_ptsz
            cuMemsetD32_v2
            cuMemsetD32_v2_ptds
            cuMemsetD8
            cuMemsetD8Async
            cuMemsetD8Async_ptsz
            cuMemsetD8_v2
            cuMemsetD8_v2_ptds
            cuMipmappedArrayCreate
            cuMipmappedArrayDestroy
            cuMipmappedArrayGetLevel
            cuMipmappedArrayGetMemoryRequirements
            cuMipmappedArrayGetSparseProperties
            cuModuleEnumerateFunctions
            cuModuleGetFunction
            cuModuleGetFunctionCount
            cuModuleGetGlobal
            cuModuleGetGlobal_v2
            cuModuleGetLoadingMode
            cuModuleGetSurfRef
            cuModuleGetTexRef
            cuModuleLoad
            cuModuleLoadData
            cuModuleLoadDataEx
            cuModuleLoadFatBinary
            cuModuleUnload
            cuMulticastAddDevice
            cuMulticastBindAddr
            cuMulticastBindMem
            cuMulticastCreate
            cuMulticastGetGranularity
            cuMulticastUnbind
            cuOccupancyAvailableDynamicSMemPerBlock
            cuOccupancyMaxActiveBlocksPerMultiprocessor
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
            cuOccupancyMaxActiveClusters
            cuOccupancyMaxPotentialBlockSize
            cuOccupancyMaxPotentialBlockSizeWithFlags
            cuOccupancyMaxPotentialClusterSize
            cuParamSetSize
            cuParamSetTexRef
            cuParamSetf
            cuParamSeti
            cuParamSetv
            cuPointerGetAttribute
            cuPointerGetAttributes
            cuPointerSetAttribute
            cuProfilerInitialize
            cuProfilerStart
            cuProfilerStop
            cuSignalExternalSemaphoresAsync
            cuSignalExternalSemaphoresAsync_ptsz
            cuStreamAddCallback
            cuStreamAddCallback_ptsz
            cuStreamAttachMemAsync
            cuStreamAttachMemAsync_ptsz
            cuStreamBatchMemOp
            cuStreamBatchMemOp_ptsz
            cuStreamBatchMemOp_v2
            cuStreamBatchMemOp_v2_ptsz
            cuStreamBeginCapture
            cuStreamBeginCaptureToGraph
            cuStreamBeginCaptureToGraph_ptsz
            cuStreamBeginCapture_ptsz
            cuStreamBeginCapture_v2
            cuStreamBeginCapture_v2_ptsz
            cuStreamCopyAttributes
            cuStreamCopyAttributes_ptsz
            cuStreamCreate
            cuStreamCreateWithPriority
            cuStreamDestroy
            cuStreamDestroy_v2
            cuStreamEndCapture
            cuStreamEndCapture_ptsz
            cuStreamGetAttribute
            cuStreamGetAttribute_ptsz
            cuStreamGetCaptureInfo
            cuStreamGetCaptureInfo_ptsz
            cuStreamGetCaptureInfo_v2
            cuStreamGetCaptureInfo_v2_ptsz
            cuStreamGetCaptureInfo_v3
            cuStreamGetCaptureInfo_v3_ptsz
            cuStreamGetCtx
            cuStreamGetCtx_ptsz
            cuStreamGetCtx_v2
            cuStreamGetCtx_v2_ptsz
            cuStreamGetDevice
            cuStreamGetDevice_ptsz
            cuStreamGetFlags
            cuStreamGetFlags_ptsz
            cuStreamGetGreenCtx
            cuStreamGetId
            cuStreamGetId_ptsz
            cuStreamGetPriority
            cuStreamGetPriority_ptsz
            cuStreamIsCapturing
            cuStreamIsCapturing_ptsz
            cuStreamQuery
            cuStreamQuery_ptsz
            cuStreamSetAttribute
            cuStreamSetAttribute_ptsz
            cuStreamSynchronize
            cuStreamSynchronize_ptsz
            cuStreamUpdateCaptureDependencies
            cuStreamUpdateCaptureDependencies_ptsz
            cuStreamUpdateCaptureDependencies_v2
            cuStreamUpdateCaptureDependencies_v2_ptsz
            cuStreamWaitEvent
            cuStreamWaitEvent_ptsz
            cuStreamWaitValue32
            cuStreamWaitValue32_ptsz
            cuStreamWaitValue32_v2
            cuStreamWaitValue32_v2_ptsz
            cuStreamWaitValue64
            cuStreamWaitValue64_ptsz
            cuStreamWaitValue64_v2
            cuStreamWaitValue64_v2_ptsz
            cuStreamWriteValue32
            cuStreamWriteValue32_ptsz
            cuStreamWriteValue32_v2
            cuStreamWriteValue32_v2_ptsz
            cuStreamWriteValue64
            cuStreamWriteValue64_ptsz
            cuStreamWriteValue64_v2
            cuStreamWriteValue64_v2_ptsz
            cuSurfObjectCreate
            cuSurfObjectDestroy
            cuSurfObjectGetResourceDesc
            cuSurfRefGetArray
            cuSurfRefSetArray
            cuTensorMapEncodeIm2col
            cuTensorMapEncodeIm2colWide
            cuTensorMapEncodeTiled
            cuTensorMapReplaceAddress
            cuTexObjectCreate
            cuTexObjectDestroy
            cuTexObjectGetResourceDesc
            cuTexObjectGetResourceViewDesc
            cuTexObjectGetTextureDesc
            cuTexRefCreate
            cuTexRefDestroy
            cuTexRefGetAddress
            cuTexRefGetAddressMode
            cuTexRefGetAddress_v2
            cuTexRefGetArray
            cuTexRefGetBorderColor
            cuTexRefGetFilterMode
            cuTexRefGetFlags
            cuTexRefGetFormat
            cuTexRefGetMaxAnisotropy
            cuTexRefGetMipmapFilterMode
            cuTexRefGetMipmapLevelBias
            cuTexRefGetMipmapLevelClamp
            cuTexRefGetMipmappedArray
            cuTexRefSetAddress
            cuTexRefSetAddress2D
            cuTexRefSetAddress2D_v2
            cuTexRefSetAddress2D_v3
            cuTexRefSetAddressMode
            cuTexRefSetAddress_v2
            cuTexRefSetArray
            cuTexRefSetBorderColor
            cuTexRefSetFilterMode
            cuTexRefSetFlags
            cuTexRefSetFormat
            cuTexRefSetMaxAnisotropy
            cuTexRefSetMipmapFilterMode
            cuTexRefSetMipmapLevelBias
            cuTexRefSetMipmapLevelClamp
            cuTexRefSetMipmappedArray
            cuThreadExchangeStreamCaptureMode
            cuUserObjectCreate
            cuUserObjectRelease
            cuUserObjectRetain
            cuVDPAUCtxCreate
            cuVDPAUCtxCreate_v2
            cuVDPAUGetDevice
            cuWaitExternalSemaphoresAsync
            cuWaitExternalSemaphoresAsync_ptsz
        }
    };
}

use super::{Function, Version};

const fn v(since: u32, symbol: &'static str) -> Version {
    Version { since, symbol }
}

const fn f(
    name: &'static str,
    ladder: &'static [Version],
    per_thread: &'static [Version],
) -> Function {
    Function {
        name,
        ladder,
        per_thread,
    }
}

pub(super) static FUNCTIONS: &[Function] = &[
    f(
        "cuArray3DCreate",
        &[v(2000, "cuArray3DCreate"), v(3020, "cuArray3DCreate_v2")],
        &[],
    ),
    f(
        "cuArray3DGetDescriptor",
        &[
            v(2000, "cuArray3DGetDescriptor"),
            v(3020, "cuArray3DGetDescriptor_v2"),
        ],
        &[],
    ),
    f(
        "cuArrayCreate",
        &[v(2000, "cuArrayCreate"), v(3020, "cuArrayCreate_v2")],
        &[],
    ),
    f("cuArrayDestroy", &[v(2000, "cuArrayDestroy")], &[]),
    f(
        "cuArrayGetDescriptor",
        &[
            v(2000, "cuArrayGetDescriptor"),
            v(3020, "cuArrayGetDescriptor_v2"),
        ],
        &[],
    ),
    f(
        "cuArrayGetMemoryRequirements",
        &[v(11060, "cuArrayGetMemoryRequirements")],
        &[],
    ),
    f("cuArrayGetPlane", &[v(11020, "cuArrayGetPlane")], &[]),
    f(
        "cuArrayGetSparseProperties",
        &[v(11010, "cuArrayGetSparseProperties")],
        &[],
    ),
    f(
        "cuCheckpointProcessCheckpoint",
        &[v(12080, "cuCheckpointProcessCheckpoint")],
        &[],
    ),
    f(
        "cuCheckpointProcessGetRestoreThreadId",
        &[v(12080, "cuCheckpointProcessGetRestoreThreadId")],
        &[],
    ),
    f(
        "cuCheckpointProcessGetState",
        &[v(12080, "cuCheckpointProcessGetState")],
        &[],
    ),
    f(
        "cuCheckpointProcessLock",
        &[v(12080, "cuCheckpointProcessLock")],
        &[],
    ),
    f(
        "cuCheckpointProcessRestore",
        &[v(12080, "cuCheckpointProcessRestore")],
        &[],
    ),
    f(
        "cuCheckpointProcessUnlock",
        &[v(12080, "cuCheckpointProcessUnlock")],
        &[],
    ),
    f(
        "cuCoredumpGetAttribute",
        &[v(12010, "cuCoredumpGetAttribute")],
        &[],
    ),
    f(
        "cuCoredumpGetAttributeGlobal",
        &[v(12010, "cuCoredumpGetAttributeGlobal")],
        &[],
    ),
    f(
        "cuCoredumpSetAttribute",
        &[v(12010, "cuCoredumpSetAttribute")],
        &[],
    ),
    f(
        "cuCoredumpSetAttributeGlobal",
        &[v(12010, "cuCoredumpSetAttributeGlobal")],
        &[],
    ),
    f("cuCtxAttach", &[v(2000, "cuCtxAttach")], &[]),
    f(
        "cuCtxCreate",
        &[
            v(2000, "cuCtxCreate"),
            v(3020, "cuCtxCreate_v2"),
            v(11040, "cuCtxCreate_v3"),
            v(12050, "cuCtxCreate_v4"),
        ],
        &[],
    ),
    f(
        "cuCtxDestroy",
        &[v(2000, "cuCtxDestroy"), v(4000, "cuCtxDestroy_v2")],
        &[],
    ),
    f("cuCtxDetach", &[v(2000, "cuCtxDetach")], &[]),
    f(
        "cuCtxDisablePeerAccess",
        &[v(4000, "cuCtxDisablePeerAccess")],
        &[],
    ),
    f(
        "cuCtxEnablePeerAccess",
        &[v(4000, "cuCtxEnablePeerAccess")],
        &[],
    ),
    f("cuCtxFromGreenCtx", &[v(12040, "cuCtxFromGreenCtx")], &[]),
    f("cuCtxGetApiVersion", &[v(3020, "cuCtxGetApiVersion")], &[]),
    f(
        "cuCtxGetCacheConfig",
        &[v(3020, "cuCtxGetCacheConfig")],
        &[],
    ),
    f("cuCtxGetCurrent", &[v(4000, "cuCtxGetCurrent")], &[]),
    f(
        "cuCtxGetDevResource",
        &[v(12040, "cuCtxGetDevResource")],
        &[],
    ),
    f(
        "cuCtxGetDevice",
        &[v(2000, "cuCtxGetDevice"), v(13000, "cuCtxGetDevice_v2")],
        &[],
    ),
    f(
        "cuCtxGetExecAffinity",
        &[v(11040, "cuCtxGetExecAffinity")],
        &[],
    ),
    f("cuCtxGetFlags", &[v(7000, "cuCtxGetFlags")], &[]),
    f("cuCtxGetId", &[v(12000, "cuCtxGetId")], &[]),
    f("cuCtxGetLimit", &[v(3010, "cuCtxGetLimit")], &[]),
    f(
        "cuCtxGetSharedMemConfig",
        &[v(4020, "cuCtxGetSharedMemConfig")],
        &[],
    ),
    f(
        "cuCtxGetStreamPriorityRange",
        &[v(5050, "cuCtxGetStreamPriorityRange")],
        &[],
    ),
    f(
        "cuCtxPopCurrent",
        &[v(2000, "cuCtxPopCurrent"), v(4000, "cuCtxPopCurrent_v2")],
        &[],
    ),
    f(
        "cuCtxPushCurrent",
        &[v(2000, "cuCtxPushCurrent"), v(4000, "cuCtxPushCurrent_v2")],
        &[],
    ),
    f("cuCtxRecordEvent", &[v(12050, "cuCtxRecordEvent")], &[]),
    f(
        "cuCtxResetPersistingL2Cache",
        &[v(11000, "cuCtxResetPersistingL2Cache")],
        &[],
    ),
    f(
        "cuCtxSetCacheConfig",
        &[v(3020, "cuCtxSetCacheConfig")],
        &[],
    ),
    f("cuCtxSetCurrent", &[v(4000, "cuCtxSetCurrent")], &[]),
    f("cuCtxSetFlags", &[v(12010, "cuCtxSetFlags")], &[]),
    f("cuCtxSetLimit", &[v(3010, "cuCtxSetLimit")], &[]),
    f(
        "cuCtxSetSharedMemConfig",
        &[v(4020, "cuCtxSetSharedMemConfig")],
        &[],
    ),
    f(
        "cuCtxSynchronize",
        &[v(2000, "cuCtxSynchronize"), v(13000, "cuCtxSynchronize_v2")],
        &[],
    ),
    f("cuCtxWaitEvent", &[v(12050, "cuCtxWaitEvent")], &[]),
    f(
        "cuDestroyExternalMemory",
        &[v(10000, "cuDestroyExternalMemory")],
        &[],
    ),
    f(
        "cuDestroyExternalSemaphore",
        &[v(10000, "cuDestroyExternalSemaphore")],
        &[],
    ),
    f(
        "cuDevResourceGenerateDesc",
        &[v(12040, "cuDevResourceGenerateDesc")],
        &[],
    ),
    f(
        "cuDevSmResourceSplitByCount",
        &[v(12040, "cuDevSmResourceSplitByCount")],
        &[],
    ),
    f(
        "cuDeviceCanAccessPeer",
        &[v(4000, "cuDeviceCanAccessPeer")],
        &[],
    ),
    f(
        "cuDeviceComputeCapability",
        &[v(2000, "cuDeviceComputeCapability")],
        &[],
    ),
    f("cuDeviceGet", &[v(2000, "cuDeviceGet")], &[]),
    f(
        "cuDeviceGetAttribute",
        &[v(2000, "cuDeviceGetAttribute")],
        &[],
    ),
    f(
        "cuDeviceGetByPCIBusId",
        &[v(4010, "cuDeviceGetByPCIBusId")],
        &[],
    ),
    f("cuDeviceGetCount", &[v(2000, "cuDeviceGetCount")], &[]),
    f(
        "cuDeviceGetDefaultMemPool",
        &[v(11020, "cuDeviceGetDefaultMemPool")],
        &[],
    ),
    f(
        "cuDeviceGetDevResource",
        &[v(12040, "cuDeviceGetDevResource")],
        &[],
    ),
    f(
        "cuDeviceGetExecAffinitySupport",
        &[v(11040, "cuDeviceGetExecAffinitySupport")],
        &[],
    ),
    f(
        "cuDeviceGetGraphMemAttribute",
        &[v(11040, "cuDeviceGetGraphMemAttribute")],
        &[],
    ),
    f(
        "cuDeviceGetHostAtomicCapabilities",
        &[v(13000, "cuDeviceGetHostAtomicCapabilities")],
        &[],
    ),
    f("cuDeviceGetLuid", &[v(10000, "cuDeviceGetLuid")], &[]),
    f("cuDeviceGetMemPool", &[v(11020, "cuDeviceGetMemPool")], &[]),
    f("cuDeviceGetName", &[v(2000, "cuDeviceGetName")], &[]),
    f(
        "cuDeviceGetNvSciSyncAttributes",
        &[v(10020, "cuDeviceGetNvSciSyncAttributes")],
        &[],
    ),
    f(
        "cuDeviceGetP2PAtomicCapabilities",
        &[v(13000, "cuDeviceGetP2PAtomicCapabilities")],
        &[],
    ),
    f(
        "cuDeviceGetP2PAttribute",
        &[v(8000, "cuDeviceGetP2PAttribute")],
        &[],
    ),
    f(
        "cuDeviceGetPCIBusId",
        &[v(4010, "cuDeviceGetPCIBusId")],
        &[],
    ),
    f(
        "cuDeviceGetProperties",
        &[v(2000, "cuDeviceGetProperties")],
        &[],
    ),
    f(
        "cuDeviceGetTexture1DLinearMaxWidth",
        &[v(11010, "cuDeviceGetTexture1DLinearMaxWidth")],
        &[],
    ),
    f(
        "cuDeviceGetUuid",
        &[v(9020, "cuDeviceGetUuid"), v(11040, "cuDeviceGetUuid_v2")],
        &[],
    ),
    f(
        "cuDeviceGraphMemTrim",
        &[v(11040, "cuDeviceGraphMemTrim")],
        &[],
    ),
    f(
        "cuDevicePrimaryCtxGetState",
        &[v(7000, "cuDevicePrimaryCtxGetState")],
        &[],
    ),
    f(
        "cuDevicePrimaryCtxRelease",
        &[
            v(7000, "cuDevicePrimaryCtxRelease"),
            v(11000, "cuDevicePrimaryCtxRelease_v2"),
        ],
        &[],
    ),
    f(
        "cuDevicePrimaryCtxReset",
        &[
            v(7000, "cuDevicePrimaryCtxReset"),
            v(11000, "cuDevicePrimaryCtxReset_v2"),
        ],
        &[],
    ),
    f(
        "cuDevicePrimaryCtxRetain",
        &[v(7000, "cuDevicePrimaryCtxRetain")],
        &[],
    ),
    f(
        "cuDevicePrimaryCtxSetFlags",
        &[
            v(7000, "cuDevicePrimaryCtxSetFlags"),
            v(11000, "cuDevicePrimaryCtxSetFlags_v2"),
        ],
        &[],
    ),
    f(
        "cuDeviceRegisterAsyncNotification",
        &[v(12040, "cuDeviceRegisterAsyncNotification")],
        &[],
    ),
    f(
        "cuDeviceSetGraphMemAttribute",
        &[v(11040, "cuDeviceSetGraphMemAttribute")],
        &[],
    ),
    f("cuDeviceSetMemPool", &[v(11020, "cuDeviceSetMemPool")], &[]),
    f(
        "cuDeviceTotalMem",
        &[v(2000, "cuDeviceTotalMem"), v(3020, "cuDeviceTotalMem_v2")],
        &[],
    ),
    f(
        "cuDeviceUnregisterAsyncNotification",
        &[v(12040, "cuDeviceUnregisterAsyncNotification")],
        &[],
    ),
    f("cuDriverGetVersion", &[v(2020, "cuDriverGetVersion")], &[]),
    f(
        "cuEGLStreamConsumerAcquireFrame",
        &[v(7000, "cuEGLStreamConsumerAcquireFrame")],
        &[],
    ),
    f(
        "cuEGLStreamConsumerConnect",
        &[v(7000, "cuEGLStreamConsumerConnect")],
        &[],
    ),
    f(
        "cuEGLStreamConsumerConnectWithFlags",
        &[v(8000, "cuEGLStreamConsumerConnectWithFlags")],
        &[],
    ),
    f(
        "cuEGLStreamConsumerDisconnect",
        &[v(7000, "cuEGLStreamConsumerDisconnect")],
        &[],
    ),
    f(
        "cuEGLStreamConsumerReleaseFrame",
        &[v(7000, "cuEGLStreamConsumerReleaseFrame")],
        &[],
    ),
    f(
        "cuEGLStreamProducerConnect",
        &[v(7000, "cuEGLStreamProducerConnect")],
        &[],
    ),
    f(
        "cuEGLStreamProducerDisconnect",
        &[v(7000, "cuEGLStreamProducerDisconnect")],
        &[],
    ),
    f(
        "cuEGLStreamProducerPresentFrame",
        &[v(7000, "cuEGLStreamProducerPresentFrame")],
        &[],
    ),
    f(
        "cuEGLStreamProducerReturnFrame",
        &[v(7000, "cuEGLStreamProducerReturnFrame")],
        &[],
    ),
    f("cuEventCreate", &[v(2000, "cuEventCreate")], &[]),
    f(
        "cuEventCreateFromEGLSync",
        &[v(9000, "cuEventCreateFromEGLSync")],
        &[],
    ),
    f(
        "cuEventDestroy",
        &[v(2000, "cuEventDestroy"), v(4000, "cuEventDestroy_v2")],
        &[],
    ),
    f(
        "cuEventElapsedTime",
        &[
            v(2000, "cuEventElapsedTime"),
            v(12080, "cuEventElapsedTime_v2"),
        ],
        &[],
    ),
    f("cuEventQuery", &[v(2000, "cuEventQuery")], &[]),
    f(
        "cuEventRecord",
        &[v(2000, "cuEventRecord")],
        &[v(7000, "cuEventRecord_ptsz")],
    ),
    f(
        "cuEventRecordWithFlags",
        &[v(11010, "cuEventRecordWithFlags")],
        &[v(11010, "cuEventRecordWithFlags_ptsz")],
    ),
    f("cuEventSynchronize", &[v(2000, "cuEventSynchronize")], &[]),
    f(
        "cuExternalMemoryGetMappedBuffer",
        &[v(10000, "cuExternalMemoryGetMappedBuffer")],
        &[],
    ),
    f(
        "cuExternalMemoryGetMappedMipmappedArray",
        &[v(10000, "cuExternalMemoryGetMappedMipmappedArray")],
        &[],
    ),
    f(
        "cuFlushGPUDirectRDMAWrites",
        &[v(11030, "cuFlushGPUDirectRDMAWrites")],
        &[],
    ),
    f("cuFuncGetAttribute", &[v(2020, "cuFuncGetAttribute")], &[]),
    f("cuFuncGetModule", &[v(11000, "cuFuncGetModule")], &[]),
    f("cuFuncGetName", &[v(12030, "cuFuncGetName")], &[]),
    f("cuFuncGetParamInfo", &[v(12040, "cuFuncGetParamInfo")], &[]),
    f("cuFuncIsLoaded", &[v(12040, "cuFuncIsLoaded")], &[]),
    f("cuFuncLoad", &[v(12040, "cuFuncLoad")], &[]),
    f("cuFuncSetAttribute", &[v(9000, "cuFuncSetAttribute")], &[]),
    f(
        "cuFuncSetBlockShape",
        &[v(2000, "cuFuncSetBlockShape")],
        &[],
    ),
    f(
        "cuFuncSetCacheConfig",
        &[v(3000, "cuFuncSetCacheConfig")],
        &[],
    ),
    f(
        "cuFuncSetSharedMemConfig",
        &[v(4020, "cuFuncSetSharedMemConfig")],
        &[],
    ),
    f(
        "cuFuncSetSharedSize",
        &[v(2000, "cuFuncSetSharedSize")],
        &[],
    ),
    f(
        "cuGLCtxCreate",
        &[v(2000, "cuGLCtxCreate"), v(3020, "cuGLCtxCreate_v2")],
        &[],
    ),
    f(
        "cuGLGetDevices",
        &[v(4010, "cuGLGetDevices"), v(6050, "cuGLGetDevices_v2")],
        &[],
    ),
    f("cuGLInit", &[v(2000, "cuGLInit")], &[]),
    f(
        "cuGLMapBufferObject",
        &[
            v(2000, "cuGLMapBufferObject"),
            v(3020, "cuGLMapBufferObject_v2"),
        ],
        &[v(7000, "cuGLMapBufferObject_v2_ptds")],
    ),
    f(
        "cuGLMapBufferObjectAsync",
        &[
            v(2030, "cuGLMapBufferObjectAsync"),
            v(3020, "cuGLMapBufferObjectAsync_v2"),
        ],
        &[v(7000, "cuGLMapBufferObjectAsync_v2_ptsz")],
    ),
    f(
        "cuGLRegisterBufferObject",
        &[v(2000, "cuGLRegisterBufferObject")],
        &[],
    ),
    f(
        "cuGLSetBufferObjectMapFlags",
        &[v(2030, "cuGLSetBufferObjectMapFlags")],
        &[],
    ),
    f(
        "cuGLUnmapBufferObject",
        &[v(2000, "cuGLUnmapBufferObject")],
        &[],
    ),
    f(
        "cuGLUnmapBufferObjectAsync",
        &[v(2030, "cuGLUnmapBufferObjectAsync")],
        &[],
    ),
    f(
        "cuGLUnregisterBufferObject",
        &[v(2000, "cuGLUnregisterBufferObject")],
        &[],
    ),
    f("cuGetErrorName", &[v(6000, "cuGetErrorName")], &[]),
    f("cuGetErrorString", &[v(6000, "cuGetErrorString")], &[]),
    f("cuGetExportTable", &[v(3000, "cuGetExportTable")], &[]),
    f(
        "cuGetProcAddress",
        &[
            v(11030, "cuGetProcAddress"),
            v(12000, "cuGetProcAddress_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphAddBatchMemOpNode",
        &[v(11070, "cuGraphAddBatchMemOpNode")],
        &[],
    ),
    f(
        "cuGraphAddChildGraphNode",
        &[v(10000, "cuGraphAddChildGraphNode")],
        &[],
    ),
    f(
        "cuGraphAddDependencies",
        &[
            v(10000, "cuGraphAddDependencies"),
            v(12030, "cuGraphAddDependencies_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphAddEmptyNode",
        &[v(10000, "cuGraphAddEmptyNode")],
        &[],
    ),
    f(
        "cuGraphAddEventRecordNode",
        &[v(11010, "cuGraphAddEventRecordNode")],
        &[],
    ),
    f(
        "cuGraphAddEventWaitNode",
        &[v(11010, "cuGraphAddEventWaitNode")],
        &[],
    ),
    f(
        "cuGraphAddExternalSemaphoresSignalNode",
        &[v(11020, "cuGraphAddExternalSemaphoresSignalNode")],
        &[],
    ),
    f(
        "cuGraphAddExternalSemaphoresWaitNode",
        &[v(11020, "cuGraphAddExternalSemaphoresWaitNode")],
        &[],
    ),
    f("cuGraphAddHostNode", &[v(10000, "cuGraphAddHostNode")], &[]),
    f(
        "cuGraphAddKernelNode",
        &[
            v(10000, "cuGraphAddKernelNode"),
            v(12000, "cuGraphAddKernelNode_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphAddMemAllocNode",
        &[v(11040, "cuGraphAddMemAllocNode")],
        &[],
    ),
    f(
        "cuGraphAddMemFreeNode",
        &[v(11040, "cuGraphAddMemFreeNode")],
        &[],
    ),
    f(
        "cuGraphAddMemcpyNode",
        &[v(10000, "cuGraphAddMemcpyNode")],
        &[],
    ),
    f(
        "cuGraphAddMemsetNode",
        &[v(10000, "cuGraphAddMemsetNode")],
        &[],
    ),
    f(
        "cuGraphAddNode",
        &[v(12020, "cuGraphAddNode"), v(12030, "cuGraphAddNode_v2")],
        &[],
    ),
    f(
        "cuGraphBatchMemOpNodeGetParams",
        &[v(11070, "cuGraphBatchMemOpNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphBatchMemOpNodeSetParams",
        &[v(11070, "cuGraphBatchMemOpNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphChildGraphNodeGetGraph",
        &[v(10000, "cuGraphChildGraphNodeGetGraph")],
        &[],
    ),
    f("cuGraphClone", &[v(10000, "cuGraphClone")], &[]),
    f(
        "cuGraphConditionalHandleCreate",
        &[v(12030, "cuGraphConditionalHandleCreate")],
        &[],
    ),
    f("cuGraphCreate", &[v(10000, "cuGraphCreate")], &[]),
    f(
        "cuGraphDebugDotPrint",
        &[v(11030, "cuGraphDebugDotPrint")],
        &[],
    ),
    f("cuGraphDestroy", &[v(10000, "cuGraphDestroy")], &[]),
    f("cuGraphDestroyNode", &[v(10000, "cuGraphDestroyNode")], &[]),
    f(
        "cuGraphEventRecordNodeGetEvent",
        &[v(11010, "cuGraphEventRecordNodeGetEvent")],
        &[],
    ),
    f(
        "cuGraphEventRecordNodeSetEvent",
        &[v(11010, "cuGraphEventRecordNodeSetEvent")],
        &[],
    ),
    f(
        "cuGraphEventWaitNodeGetEvent",
        &[v(11010, "cuGraphEventWaitNodeGetEvent")],
        &[],
    ),
    f(
        "cuGraphEventWaitNodeSetEvent",
        &[v(11010, "cuGraphEventWaitNodeSetEvent")],
        &[],
    ),
    f(
        "cuGraphExecBatchMemOpNodeSetParams",
        &[v(11070, "cuGraphExecBatchMemOpNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecChildGraphNodeSetParams",
        &[v(11010, "cuGraphExecChildGraphNodeSetParams")],
        &[],
    ),
    f("cuGraphExecDestroy", &[v(10000, "cuGraphExecDestroy")], &[]),
    f(
        "cuGraphExecEventRecordNodeSetEvent",
        &[v(11010, "cuGraphExecEventRecordNodeSetEvent")],
        &[],
    ),
    f(
        "cuGraphExecEventWaitNodeSetEvent",
        &[v(11010, "cuGraphExecEventWaitNodeSetEvent")],
        &[],
    ),
    f(
        "cuGraphExecExternalSemaphoresSignalNodeSetParams",
        &[v(11020, "cuGraphExecExternalSemaphoresSignalNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecExternalSemaphoresWaitNodeSetParams",
        &[v(11020, "cuGraphExecExternalSemaphoresWaitNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecGetFlags",
        &[v(12000, "cuGraphExecGetFlags")],
        &[],
    ),
    f(
        "cuGraphExecHostNodeSetParams",
        &[v(10020, "cuGraphExecHostNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecKernelNodeSetParams",
        &[
            v(10010, "cuGraphExecKernelNodeSetParams"),
            v(12000, "cuGraphExecKernelNodeSetParams_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphExecMemcpyNodeSetParams",
        &[v(10020, "cuGraphExecMemcpyNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecMemsetNodeSetParams",
        &[v(10020, "cuGraphExecMemsetNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecNodeSetParams",
        &[v(12020, "cuGraphExecNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExecUpdate",
        &[
            v(10020, "cuGraphExecUpdate"),
            v(12000, "cuGraphExecUpdate_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphExternalSemaphoresSignalNodeGetParams",
        &[v(11020, "cuGraphExternalSemaphoresSignalNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphExternalSemaphoresSignalNodeSetParams",
        &[v(11020, "cuGraphExternalSemaphoresSignalNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphExternalSemaphoresWaitNodeGetParams",
        &[v(11020, "cuGraphExternalSemaphoresWaitNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphExternalSemaphoresWaitNodeSetParams",
        &[v(11020, "cuGraphExternalSemaphoresWaitNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphGetEdges",
        &[v(10000, "cuGraphGetEdges"), v(12030, "cuGraphGetEdges_v2")],
        &[],
    ),
    f("cuGraphGetNodes", &[v(10000, "cuGraphGetNodes")], &[]),
    f(
        "cuGraphGetRootNodes",
        &[v(10000, "cuGraphGetRootNodes")],
        &[],
    ),
    f(
        "cuGraphHostNodeGetParams",
        &[v(10000, "cuGraphHostNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphHostNodeSetParams",
        &[v(10000, "cuGraphHostNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphInstantiate",
        &[
            v(10000, "cuGraphInstantiate"),
            v(11000, "cuGraphInstantiate_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphInstantiateWithFlags",
        &[v(11040, "cuGraphInstantiateWithFlags")],
        &[],
    ),
    f(
        "cuGraphInstantiateWithParams",
        &[v(12000, "cuGraphInstantiateWithParams")],
        &[v(12000, "cuGraphInstantiateWithParams_ptsz")],
    ),
    f(
        "cuGraphKernelNodeCopyAttributes",
        &[v(11000, "cuGraphKernelNodeCopyAttributes")],
        &[],
    ),
    f(
        "cuGraphKernelNodeGetAttribute",
        &[v(11000, "cuGraphKernelNodeGetAttribute")],
        &[],
    ),
    f(
        "cuGraphKernelNodeGetParams",
        &[
            v(10000, "cuGraphKernelNodeGetParams"),
            v(12000, "cuGraphKernelNodeGetParams_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphKernelNodeSetAttribute",
        &[v(11000, "cuGraphKernelNodeSetAttribute")],
        &[],
    ),
    f(
        "cuGraphKernelNodeSetParams",
        &[
            v(10000, "cuGraphKernelNodeSetParams"),
            v(12000, "cuGraphKernelNodeSetParams_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphLaunch",
        &[v(10000, "cuGraphLaunch")],
        &[v(10000, "cuGraphLaunch_ptsz")],
    ),
    f(
        "cuGraphMemAllocNodeGetParams",
        &[v(11040, "cuGraphMemAllocNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphMemFreeNodeGetParams",
        &[v(11040, "cuGraphMemFreeNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphMemcpyNodeGetParams",
        &[v(10000, "cuGraphMemcpyNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphMemcpyNodeSetParams",
        &[v(10000, "cuGraphMemcpyNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphMemsetNodeGetParams",
        &[v(10000, "cuGraphMemsetNodeGetParams")],
        &[],
    ),
    f(
        "cuGraphMemsetNodeSetParams",
        &[v(10000, "cuGraphMemsetNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphNodeFindInClone",
        &[v(10000, "cuGraphNodeFindInClone")],
        &[],
    ),
    f(
        "cuGraphNodeGetDependencies",
        &[
            v(10000, "cuGraphNodeGetDependencies"),
            v(12030, "cuGraphNodeGetDependencies_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphNodeGetDependentNodes",
        &[
            v(10000, "cuGraphNodeGetDependentNodes"),
            v(12030, "cuGraphNodeGetDependentNodes_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphNodeGetEnabled",
        &[v(11060, "cuGraphNodeGetEnabled")],
        &[],
    ),
    f("cuGraphNodeGetType", &[v(10000, "cuGraphNodeGetType")], &[]),
    f(
        "cuGraphNodeSetEnabled",
        &[v(11060, "cuGraphNodeSetEnabled")],
        &[],
    ),
    f(
        "cuGraphNodeSetParams",
        &[v(12020, "cuGraphNodeSetParams")],
        &[],
    ),
    f(
        "cuGraphReleaseUserObject",
        &[v(11030, "cuGraphReleaseUserObject")],
        &[],
    ),
    f(
        "cuGraphRemoveDependencies",
        &[
            v(10000, "cuGraphRemoveDependencies"),
            v(12030, "cuGraphRemoveDependencies_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphRetainUserObject",
        &[v(11030, "cuGraphRetainUserObject")],
        &[],
    ),
    f(
        "cuGraphUpload",
        &[v(11010, "cuGraphUpload")],
        &[v(11010, "cuGraphUpload_ptsz")],
    ),
    f(
        "cuGraphicsEGLRegisterImage",
        &[v(7000, "cuGraphicsEGLRegisterImage")],
        &[],
    ),
    f(
        "cuGraphicsGLRegisterBuffer",
        &[v(3000, "cuGraphicsGLRegisterBuffer")],
        &[],
    ),
    f(
        "cuGraphicsGLRegisterImage",
        &[v(3000, "cuGraphicsGLRegisterImage")],
        &[],
    ),
    f(
        "cuGraphicsMapResources",
        &[v(3000, "cuGraphicsMapResources")],
        &[v(7000, "cuGraphicsMapResources_ptsz")],
    ),
    f(
        "cuGraphicsResourceGetMappedEglFrame",
        &[v(7000, "cuGraphicsResourceGetMappedEglFrame")],
        &[],
    ),
    f(
        "cuGraphicsResourceGetMappedMipmappedArray",
        &[v(5000, "cuGraphicsResourceGetMappedMipmappedArray")],
        &[],
    ),
    f(
        "cuGraphicsResourceGetMappedPointer",
        &[
            v(3000, "cuGraphicsResourceGetMappedPointer"),
            v(3020, "cuGraphicsResourceGetMappedPointer_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphicsResourceSetMapFlags",
        &[
            v(3000, "cuGraphicsResourceSetMapFlags"),
            v(6050, "cuGraphicsResourceSetMapFlags_v2"),
        ],
        &[],
    ),
    f(
        "cuGraphicsSubResourceGetMappedArray",
        &[v(3000, "cuGraphicsSubResourceGetMappedArray")],
        &[],
    ),
    f(
        "cuGraphicsUnmapResources",
        &[v(3000, "cuGraphicsUnmapResources")],
        &[v(7000, "cuGraphicsUnmapResources_ptsz")],
    ),
    f(
        "cuGraphicsUnregisterResource",
        &[v(3000, "cuGraphicsUnregisterResource")],
        &[],
    ),
    f(
        "cuGraphicsVDPAURegisterOutputSurface",
        &[v(3010, "cuGraphicsVDPAURegisterOutputSurface")],
        &[],
    ),
    f(
        "cuGraphicsVDPAURegisterVideoSurface",
        &[v(3010, "cuGraphicsVDPAURegisterVideoSurface")],
        &[],
    ),
    f("cuGreenCtxCreate", &[v(12040, "cuGreenCtxCreate")], &[]),
    f("cuGreenCtxDestroy", &[v(12040, "cuGreenCtxDestroy")], &[]),
    f(
        "cuGreenCtxGetDevResource",
        &[v(12040, "cuGreenCtxGetDevResource")],
        &[],
    ),
    f("cuGreenCtxGetId", &[v(12090, "cuGreenCtxGetId")], &[]),
    f(
        "cuGreenCtxRecordEvent",
        &[v(12040, "cuGreenCtxRecordEvent")],
        &[],
    ),
    f(
        "cuGreenCtxStreamCreate",
        &[v(12050, "cuGreenCtxStreamCreate")],
        &[],
    ),
    f(
        "cuGreenCtxWaitEvent",
        &[v(12040, "cuGreenCtxWaitEvent")],
        &[],
    ),
    f(
        "cuImportExternalMemory",
        &[v(10000, "cuImportExternalMemory")],
        &[],
    ),
    f(
        "cuImportExternalSemaphore",
        &[v(10000, "cuImportExternalSemaphore")],
        &[],
    ),
    f("cuInit", &[v(2000, "cuInit")], &[]),
    f(
        "cuIpcCloseMemHandle",
        &[v(4010, "cuIpcCloseMemHandle")],
        &[],
    ),
    f(
        "cuIpcGetEventHandle",
        &[v(4010, "cuIpcGetEventHandle")],
        &[],
    ),
    f("cuIpcGetMemHandle", &[v(4010, "cuIpcGetMemHandle")], &[]),
    f(
        "cuIpcOpenEventHandle",
        &[v(4010, "cuIpcOpenEventHandle")],
        &[],
    ),
    f(
        "cuIpcOpenMemHandle",
        &[
            v(4010, "cuIpcOpenMemHandle"),
            v(11000, "cuIpcOpenMemHandle_v2"),
        ],
        &[],
    ),
    f(
        "cuKernelGetAttribute",
        &[v(12000, "cuKernelGetAttribute")],
        &[],
    ),
    f(
        "cuKernelGetFunction",
        &[v(12000, "cuKernelGetFunction")],
        &[],
    ),
    f("cuKernelGetLibrary", &[v(12050, "cuKernelGetLibrary")], &[]),
    f("cuKernelGetName", &[v(12030, "cuKernelGetName")], &[]),
    f(
        "cuKernelGetParamInfo",
        &[v(12040, "cuKernelGetParamInfo")],
        &[],
    ),
    f(
        "cuKernelSetAttribute",
        &[v(12000, "cuKernelSetAttribute")],
        &[],
    ),
    f(
        "cuKernelSetCacheConfig",
        &[v(12000, "cuKernelSetCacheConfig")],
        &[],
    ),
    f("cuLaunch", &[v(2000, "cuLaunch")], &[]),
    f(
        "cuLaunchCooperativeKernel",
        &[v(9000, "cuLaunchCooperativeKernel")],
        &[v(9000, "cuLaunchCooperativeKernel_ptsz")],
    ),
    f(
        "cuLaunchCooperativeKernelMultiDevice",
        &[v(9000, "cuLaunchCooperativeKernelMultiDevice")],
        &[],
    ),
    f("cuLaunchGrid", &[v(2000, "cuLaunchGrid")], &[]),
    f("cuLaunchGridAsync", &[v(2000, "cuLaunchGridAsync")], &[]),
    f(
        "cuLaunchHostFunc",
        &[v(10000, "cuLaunchHostFunc")],
        &[v(10000, "cuLaunchHostFunc_ptsz")],
    ),
    f(
        "cuLaunchKernel",
        &[v(4000, "cuLaunchKernel")],
        &[v(7000, "cuLaunchKernel_ptsz")],
    ),
    f(
        "cuLaunchKernelEx",
        &[v(11060, "cuLaunchKernelEx")],
        &[v(11060, "cuLaunchKernelEx_ptsz")],
    ),
    f(
        "cuLibraryEnumerateKernels",
        &[v(12040, "cuLibraryEnumerateKernels")],
        &[],
    ),
    f("cuLibraryGetGlobal", &[v(12000, "cuLibraryGetGlobal")], &[]),
    f("cuLibraryGetKernel", &[v(12000, "cuLibraryGetKernel")], &[]),
    f(
        "cuLibraryGetKernelCount",
        &[v(12040, "cuLibraryGetKernelCount")],
        &[],
    ),
    f(
        "cuLibraryGetManaged",
        &[v(12000, "cuLibraryGetManaged")],
        &[],
    ),
    f("cuLibraryGetModule", &[v(12000, "cuLibraryGetModule")], &[]),
    f(
        "cuLibraryGetUnifiedFunction",
        &[v(12000, "cuLibraryGetUnifiedFunction")],
        &[],
    ),
    f("cuLibraryLoadData", &[v(12000, "cuLibraryLoadData")], &[]),
    f(
        "cuLibraryLoadFromFile",
        &[v(12000, "cuLibraryLoadFromFile")],
        &[],
    ),
    f("cuLibraryUnload", &[v(12000, "cuLibraryUnload")], &[]),
    f(
        "cuLinkAddData",
        &[v(5050, "cuLinkAddData"), v(6050, "cuLinkAddData_v2")],
        &[],
    ),
    f(
        "cuLinkAddFile",
        &[v(5050, "cuLinkAddFile"), v(6050, "cuLinkAddFile_v2")],
        &[],
    ),
    f("cuLinkComplete", &[v(5050, "cuLinkComplete")], &[]),
    f(
        "cuLinkCreate",
        &[v(5050, "cuLinkCreate"), v(6050, "cuLinkCreate_v2")],
        &[],
    ),
    f("cuLinkDestroy", &[v(5050, "cuLinkDestroy")], &[]),
    f("cuLogsCurrent", &[v(12090, "cuLogsCurrent")], &[]),
    f("cuLogsDumpToFile", &[v(12090, "cuLogsDumpToFile")], &[]),
    f("cuLogsDumpToMemory", &[v(12090, "cuLogsDumpToMemory")], &[]),
    f(
        "cuLogsRegisterCallback",
        &[v(12090, "cuLogsRegisterCallback")],
        &[],
    ),
    f(
        "cuLogsUnregisterCallback",
        &[v(12090, "cuLogsUnregisterCallback")],
        &[],
    ),
    f("cuMemAddressFree", &[v(10020, "cuMemAddressFree")], &[]),
    f(
        "cuMemAddressReserve",
        &[v(10020, "cuMemAddressReserve")],
        &[],
    ),
    f(
        "cuMemAdvise",
        &[v(8000, "cuMemAdvise"), v(12020, "cuMemAdvise_v2")],
        &[],
    ),
    f(
        "cuMemAlloc",
        &[v(2000, "cuMemAlloc"), v(3020, "cuMemAlloc_v2")],
        &[],
    ),
    f(
        "cuMemAllocAsync",
        &[v(11020, "cuMemAllocAsync")],
        &[v(11020, "cuMemAllocAsync_ptsz")],
    ),
    f(
        "cuMemAllocFromPoolAsync",
        &[v(11020, "cuMemAllocFromPoolAsync")],
        &[v(11020, "cuMemAllocFromPoolAsync_ptsz")],
    ),
    f(
        "cuMemAllocHost",
        &[v(2000, "cuMemAllocHost"), v(3020, "cuMemAllocHost_v2")],
        &[],
    ),
    f("cuMemAllocManaged", &[v(6000, "cuMemAllocManaged")], &[]),
    f(
        "cuMemAllocPitch",
        &[v(2000, "cuMemAllocPitch"), v(3020, "cuMemAllocPitch_v2")],
        &[],
    ),
    f(
        "cuMemBatchDecompressAsync",
        &[v(12060, "cuMemBatchDecompressAsync")],
        &[v(12060, "cuMemBatchDecompressAsync_ptsz")],
    ),
    f("cuMemCreate", &[v(10020, "cuMemCreate")], &[]),
    f(
        "cuMemDiscardAndPrefetchBatchAsync",
        &[v(13000, "cuMemDiscardAndPrefetchBatchAsync")],
        &[v(13000, "cuMemDiscardAndPrefetchBatchAsync_ptsz")],
    ),
    f(
        "cuMemDiscardBatchAsync",
        &[v(13000, "cuMemDiscardBatchAsync")],
        &[v(13000, "cuMemDiscardBatchAsync_ptsz")],
    ),
    f(
        "cuMemExportToShareableHandle",
        &[v(10020, "cuMemExportToShareableHandle")],
        &[],
    ),
    f(
        "cuMemFree",
        &[v(2000, "cuMemFree"), v(3020, "cuMemFree_v2")],
        &[],
    ),
    f(
        "cuMemFreeAsync",
        &[v(11020, "cuMemFreeAsync")],
        &[v(11020, "cuMemFreeAsync_ptsz")],
    ),
    f("cuMemFreeHost", &[v(2000, "cuMemFreeHost")], &[]),
    f("cuMemGetAccess", &[v(10020, "cuMemGetAccess")], &[]),
    f(
        "cuMemGetAddressRange",
        &[
            v(2000, "cuMemGetAddressRange"),
            v(3020, "cuMemGetAddressRange_v2"),
        ],
        &[],
    ),
    f(
        "cuMemGetAllocationGranularity",
        &[v(10020, "cuMemGetAllocationGranularity")],
        &[],
    ),
    f(
        "cuMemGetAllocationPropertiesFromHandle",
        &[v(10020, "cuMemGetAllocationPropertiesFromHandle")],
        &[],
    ),
    f(
        "cuMemGetDefaultMemPool",
        &[v(13000, "cuMemGetDefaultMemPool")],
        &[],
    ),
    f(
        "cuMemGetHandleForAddressRange",
        &[v(11070, "cuMemGetHandleForAddressRange")],
        &[],
    ),
    f(
        "cuMemGetInfo",
        &[v(2000, "cuMemGetInfo"), v(3020, "cuMemGetInfo_v2")],
        &[],
    ),
    f("cuMemGetMemPool", &[v(13000, "cuMemGetMemPool")], &[]),
    f("cuMemHostAlloc", &[v(2020, "cuMemHostAlloc")], &[]),
    f(
        "cuMemHostGetDevicePointer",
        &[
            v(2020, "cuMemHostGetDevicePointer"),
            v(3020, "cuMemHostGetDevicePointer_v2"),
        ],
        &[],
    ),
    f("cuMemHostGetFlags", &[v(2030, "cuMemHostGetFlags")], &[]),
    f(
        "cuMemHostRegister",
        &[
            v(4000, "cuMemHostRegister"),
            v(6050, "cuMemHostRegister_v2"),
        ],
        &[],
    ),
    f(
        "cuMemHostUnregister",
        &[v(4000, "cuMemHostUnregister")],
        &[],
    ),
    f(
        "cuMemImportFromShareableHandle",
        &[v(10020, "cuMemImportFromShareableHandle")],
        &[],
    ),
    f("cuMemMap", &[v(10020, "cuMemMap")], &[]),
    f(
        "cuMemMapArrayAsync",
        &[v(11010, "cuMemMapArrayAsync")],
        &[v(11010, "cuMemMapArrayAsync_ptsz")],
    ),
    f("cuMemPoolCreate", &[v(11020, "cuMemPoolCreate")], &[]),
    f("cuMemPoolDestroy", &[v(11020, "cuMemPoolDestroy")], &[]),
    f(
        "cuMemPoolExportPointer",
        &[v(11020, "cuMemPoolExportPointer")],
        &[],
    ),
    f(
        "cuMemPoolExportToShareableHandle",
        &[v(11020, "cuMemPoolExportToShareableHandle")],
        &[],
    ),
    f("cuMemPoolGetAccess", &[v(11020, "cuMemPoolGetAccess")], &[]),
    f(
        "cuMemPoolGetAttribute",
        &[v(11020, "cuMemPoolGetAttribute")],
        &[],
    ),
    f(
        "cuMemPoolImportFromShareableHandle",
        &[v(11020, "cuMemPoolImportFromShareableHandle")],
        &[],
    ),
    f(
        "cuMemPoolImportPointer",
        &[v(11020, "cuMemPoolImportPointer")],
        &[],
    ),
    f("cuMemPoolSetAccess", &[v(11020, "cuMemPoolSetAccess")], &[]),
    f(
        "cuMemPoolSetAttribute",
        &[v(11020, "cuMemPoolSetAttribute")],
        &[],
    ),
    f("cuMemPoolTrimTo", &[v(11020, "cuMemPoolTrimTo")], &[]),
    f(
        "cuMemPrefetchAsync",
        &[
            v(8000, "cuMemPrefetchAsync"),
            v(12020, "cuMemPrefetchAsync_v2"),
        ],
        &[
            v(8000, "cuMemPrefetchAsync_ptsz"),
            v(12020, "cuMemPrefetchAsync_v2_ptsz"),
        ],
    ),
    f(
        "cuMemPrefetchBatchAsync",
        &[v(13000, "cuMemPrefetchBatchAsync")],
        &[v(13000, "cuMemPrefetchBatchAsync_ptsz")],
    ),
    f(
        "cuMemRangeGetAttribute",
        &[v(8000, "cuMemRangeGetAttribute")],
        &[],
    ),
    f(
        "cuMemRangeGetAttributes",
        &[v(8000, "cuMemRangeGetAttributes")],
        &[],
    ),
    f("cuMemRelease", &[v(10020, "cuMemRelease")], &[]),
    f(
        "cuMemRetainAllocationHandle",
        &[v(11000, "cuMemRetainAllocationHandle")],
        &[],
    ),
    f("cuMemSetAccess", &[v(10020, "cuMemSetAccess")], &[]),
    f("cuMemSetMemPool", &[v(13000, "cuMemSetMemPool")], &[]),
    f("cuMemUnmap", &[v(10020, "cuMemUnmap")], &[]),
    f(
        "cuMemcpy",
        &[v(4000, "cuMemcpy")],
        &[v(7000, "cuMemcpy_ptds")],
    ),
    f(
        "cuMemcpy2D",
        &[v(2000, "cuMemcpy2D"), v(3020, "cuMemcpy2D_v2")],
        &[v(7000, "cuMemcpy2D_v2_ptds")],
    ),
    f(
        "cuMemcpy2DAsync",
        &[v(2000, "cuMemcpy2DAsync"), v(3020, "cuMemcpy2DAsync_v2")],
        &[v(7000, "cuMemcpy2DAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpy2DUnaligned",
        &[
            v(2000, "cuMemcpy2DUnaligned"),
            v(3020, "cuMemcpy2DUnaligned_v2"),
        ],
        &[v(7000, "cuMemcpy2DUnaligned_v2_ptds")],
    ),
    f(
        "cuMemcpy3D",
        &[v(2000, "cuMemcpy3D"), v(3020, "cuMemcpy3D_v2")],
        &[v(7000, "cuMemcpy3D_v2_ptds")],
    ),
    f(
        "cuMemcpy3DAsync",
        &[v(2000, "cuMemcpy3DAsync"), v(3020, "cuMemcpy3DAsync_v2")],
        &[v(7000, "cuMemcpy3DAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpy3DBatchAsync",
        &[
            v(12080, "cuMemcpy3DBatchAsync"),
            v(13000, "cuMemcpy3DBatchAsync_v2"),
        ],
        &[
            v(12080, "cuMemcpy3DBatchAsync_ptsz"),
            v(13000, "cuMemcpy3DBatchAsync_v2_ptsz"),
        ],
    ),
    f(
        "cuMemcpy3DPeer",
        &[v(4000, "cuMemcpy3DPeer")],
        &[v(7000, "cuMemcpy3DPeer_ptds")],
    ),
    f(
        "cuMemcpy3DPeerAsync",
        &[v(4000, "cuMemcpy3DPeerAsync")],
        &[v(7000, "cuMemcpy3DPeerAsync_ptsz")],
    ),
    f(
        "cuMemcpyAsync",
        &[v(4000, "cuMemcpyAsync")],
        &[v(7000, "cuMemcpyAsync_ptsz")],
    ),
    f(
        "cuMemcpyAtoA",
        &[v(2000, "cuMemcpyAtoA"), v(3020, "cuMemcpyAtoA_v2")],
        &[v(7000, "cuMemcpyAtoA_v2_ptds")],
    ),
    f(
        "cuMemcpyAtoD",
        &[v(2000, "cuMemcpyAtoD"), v(3020, "cuMemcpyAtoD_v2")],
        &[v(7000, "cuMemcpyAtoD_v2_ptds")],
    ),
    f(
        "cuMemcpyAtoH",
        &[v(2000, "cuMemcpyAtoH"), v(3020, "cuMemcpyAtoH_v2")],
        &[v(7000, "cuMemcpyAtoH_v2_ptds")],
    ),
    f(
        "cuMemcpyAtoHAsync",
        &[
            v(2000, "cuMemcpyAtoHAsync"),
            v(3020, "cuMemcpyAtoHAsync_v2"),
        ],
        &[v(7000, "cuMemcpyAtoHAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpyBatchAsync",
        &[
            v(12080, "cuMemcpyBatchAsync"),
            v(13000, "cuMemcpyBatchAsync_v2"),
        ],
        &[
            v(12080, "cuMemcpyBatchAsync_ptsz"),
            v(13000, "cuMemcpyBatchAsync_v2_ptsz"),
        ],
    ),
    f(
        "cuMemcpyDtoA",
        &[v(2000, "cuMemcpyDtoA"), v(3020, "cuMemcpyDtoA_v2")],
        &[v(7000, "cuMemcpyDtoA_v2_ptds")],
    ),
    f(
        "cuMemcpyDtoD",
        &[v(2000, "cuMemcpyDtoD"), v(3020, "cuMemcpyDtoD_v2")],
        &[v(7000, "cuMemcpyDtoD_v2_ptds")],
    ),
    f(
        "cuMemcpyDtoDAsync",
        &[
            v(3000, "cuMemcpyDtoDAsync"),
            v(3020, "cuMemcpyDtoDAsync_v2"),
        ],
        &[v(7000, "cuMemcpyDtoDAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpyDtoH",
        &[v(2000, "cuMemcpyDtoH"), v(3020, "cuMemcpyDtoH_v2")],
        &[v(7000, "cuMemcpyDtoH_v2_ptds")],
    ),
    f(
        "cuMemcpyDtoHAsync",
        &[
            v(2000, "cuMemcpyDtoHAsync"),
            v(3020, "cuMemcpyDtoHAsync_v2"),
        ],
        &[v(7000, "cuMemcpyDtoHAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpyHtoA",
        &[v(2000, "cuMemcpyHtoA"), v(3020, "cuMemcpyHtoA_v2")],
        &[v(7000, "cuMemcpyHtoA_v2_ptds")],
    ),
    f(
        "cuMemcpyHtoAAsync",
        &[
            v(2000, "cuMemcpyHtoAAsync"),
            v(3020, "cuMemcpyHtoAAsync_v2"),
        ],
        &[v(7000, "cuMemcpyHtoAAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpyHtoD",
        &[v(2000, "cuMemcpyHtoD"), v(3020, "cuMemcpyHtoD_v2")],
        &[v(7000, "cuMemcpyHtoD_v2_ptds")],
    ),
    f(
        "cuMemcpyHtoDAsync",
        &[
            v(2000, "cuMemcpyHtoDAsync"),
            v(3020, "cuMemcpyHtoDAsync_v2"),
        ],
        &[v(7000, "cuMemcpyHtoDAsync_v2_ptsz")],
    ),
    f(
        "cuMemcpyPeer",
        &[v(4000, "cuMemcpyPeer")],
        &[v(7000, "cuMemcpyPeer_ptds")],
    ),
    f(
        "cuMemcpyPeerAsync",
        &[v(4000, "cuMemcpyPeerAsync")],
        &[v(7000, "cuMemcpyPeerAsync_ptsz")],
    ),
    f(
        "cuMemsetD16",
        &[v(2000, "cuMemsetD16"), v(3020, "cuMemsetD16_v2")],
        &[v(7000, "cuMemsetD16_v2_ptds")],
    ),
    f(
        "cuMemsetD16Async",
        &[v(3020, "cuMemsetD16Async")],
        &[v(7000, "cuMemsetD16Async_ptsz")],
    ),
    f(
        "cuMemsetD2D16",
        &[v(2000, "cuMemsetD2D16"), v(3020, "cuMemsetD2D16_v2")],
        &[v(7000, "cuMemsetD2D16_v2_ptds")],
    ),
    f(
        "cuMemsetD2D16Async",
        &[v(3020, "cuMemsetD2D16Async")],
        &[v(7000, "cuMemsetD2D16Async_ptsz")],
    ),
    f(
        "cuMemsetD2D32",
        &[v(2000, "cuMemsetD2D32"), v(3020, "cuMemsetD2D32_v2")],
        &[v(7000, "cuMemsetD2D32_v2_ptds")],
    ),
    f(
        "cuMemsetD2D32Async",
        &[v(3020, "cuMemsetD2D32Async")],
        &[v(7000, "cuMemsetD2D32Async_ptsz")],
    ),
    f(
        "cuMemsetD2D8",
        &[v(2000, "cuMemsetD2D8"), v(3020, "cuMemsetD2D8_v2")],
        &[v(7000, "cuMemsetD2D8_v2_ptds")],
    ),
    f(
        "cuMemsetD2D8Async",
        &[v(3020, "cuMemsetD2D8Async")],
        &[v(7000, "cuMemsetD2D8Async_ptsz")],
    ),
    f(
        "cuMemsetD32",
        &[v(2000, "cuMemsetD32"), v(3020, "cuMemsetD32_v2")],
        &[v(7000, "cuMemsetD32_v2_ptds")],
    ),
    f(
        "cuMemsetD32Async",
        &[v(3020, "cuMemsetD32Async")],
        &[v(7000, "cuMemsetD32Async_ptsz")],
    ),
    f(
        "cuMemsetD8",
        &[v(2000, "cuMemsetD8"), v(3020, "cuMemsetD8_v2")],
        &[v(7000, "cuMemsetD8_v2_ptds")],
    ),
    f(
        "cuMemsetD8Async",
        &[v(3020, "cuMemsetD8Async")],
        &[v(7000, "cuMemsetD8Async_ptsz")],
    ),
    f(
        "cuMipmappedArrayCreate",
        &[v(5000, "cuMipmappedArrayCreate")],
        &[],
    ),
    f(
        "cuMipmappedArrayDestroy",
        &[v(5000, "cuMipmappedArrayDestroy")],
        &[],
    ),
    f(
        "cuMipmappedArrayGetLevel",
        &[v(5000, "cuMipmappedArrayGetLevel")],
        &[],
    ),
    f(
        "cuMipmappedArrayGetMemoryRequirements",
        &[v(11060, "cuMipmappedArrayGetMemoryRequirements")],
        &[],
    ),
    f(
        "cuMipmappedArrayGetSparseProperties",
        &[v(11010, "cuMipmappedArrayGetSparseProperties")],
        &[],
    ),
    f(
        "cuModuleEnumerateFunctions",
        &[v(12040, "cuModuleEnumerateFunctions")],
        &[],
    ),
    f(
        "cuModuleGetFunction",
        &[v(2000, "cuModuleGetFunction")],
        &[],
    ),
    f(
        "cuModuleGetFunctionCount",
        &[v(12040, "cuModuleGetFunctionCount")],
        &[],
    ),
    f(
        "cuModuleGetGlobal",
        &[
            v(2000, "cuModuleGetGlobal"),
            v(3020, "cuModuleGetGlobal_v2"),
        ],
        &[],
    ),
    f(
        "cuModuleGetLoadingMode",
        &[v(11070, "cuModuleGetLoadingMode")],
        &[],
    ),
    f("cuModuleGetSurfRef", &[v(3000, "cuModuleGetSurfRef")], &[]),
    f("cuModuleGetTexRef", &[v(2000, "cuModuleGetTexRef")], &[]),
    f("cuModuleLoad", &[v(2000, "cuModuleLoad")], &[]),
    f("cuModuleLoadData", &[v(2000, "cuModuleLoadData")], &[]),
    f("cuModuleLoadDataEx", &[v(2010, "cuModuleLoadDataEx")], &[]),
    f(
        "cuModuleLoadFatBinary",
        &[v(2000, "cuModuleLoadFatBinary")],
        &[],
    ),
    f("cuModuleUnload", &[v(2000, "cuModuleUnload")], &[]),
    f(
        "cuMulticastAddDevice",
        &[v(12010, "cuMulticastAddDevice")],
        &[],
    ),
    f(
        "cuMulticastBindAddr",
        &[v(12010, "cuMulticastBindAddr")],
        &[],
    ),
    f("cuMulticastBindMem", &[v(12010, "cuMulticastBindMem")], &[]),
    f("cuMulticastCreate", &[v(12010, "cuMulticastCreate")], &[]),
    f(
        "cuMulticastGetGranularity",
        &[v(12010, "cuMulticastGetGranularity")],
        &[],
    ),
    f("cuMulticastUnbind", &[v(12010, "cuMulticastUnbind")], &[]),
    f(
        "cuOccupancyAvailableDynamicSMemPerBlock",
        &[v(10020, "cuOccupancyAvailableDynamicSMemPerBlock")],
        &[],
    ),
    f(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        &[v(6050, "cuOccupancyMaxActiveBlocksPerMultiprocessor")],
        &[],
    ),
    f(
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        &[v(
            7000,
            "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        )],
        &[],
    ),
    f(
        "cuOccupancyMaxActiveClusters",
        &[v(11070, "cuOccupancyMaxActiveClusters")],
        &[],
    ),
    f(
        "cuOccupancyMaxPotentialBlockSize",
        &[v(6050, "cuOccupancyMaxPotentialBlockSize")],
        &[],
    ),
    f(
        "cuOccupancyMaxPotentialBlockSizeWithFlags",
        &[v(7000, "cuOccupancyMaxPotentialBlockSizeWithFlags")],
        &[],
    ),
    f(
        "cuOccupancyMaxPotentialClusterSize",
        &[v(11070, "cuOccupancyMaxPotentialClusterSize")],
        &[],
    ),
    f("cuParamSetSize", &[v(2000, "cuParamSetSize")], &[]),
    f("cuParamSetTexRef", &[v(2000, "cuParamSetTexRef")], &[]),
    f("cuParamSetf", &[v(2000, "cuParamSetf")], &[]),
    f("cuParamSeti", &[v(2000, "cuParamSeti")], &[]),
    f("cuParamSetv", &[v(2000, "cuParamSetv")], &[]),
    f(
        "cuPointerGetAttribute",
        &[v(4000, "cuPointerGetAttribute")],
        &[],
    ),
    f(
        "cuPointerGetAttributes",
        &[v(7000, "cuPointerGetAttributes")],
        &[],
    ),
    f(
        "cuPointerSetAttribute",
        &[v(6000, "cuPointerSetAttribute")],
        &[],
    ),
    f(
        "cuProfilerInitialize",
        &[v(4000, "cuProfilerInitialize")],
        &[],
    ),
    f("cuProfilerStart", &[v(4000, "cuProfilerStart")], &[]),
    f("cuProfilerStop", &[v(4000, "cuProfilerStop")], &[]),
    f(
        "cuSignalExternalSemaphoresAsync",
        &[v(10000, "cuSignalExternalSemaphoresAsync")],
        &[v(10000, "cuSignalExternalSemaphoresAsync_ptsz")],
    ),
    f(
        "cuStreamAddCallback",
        &[v(5000, "cuStreamAddCallback")],
        &[v(7000, "cuStreamAddCallback_ptsz")],
    ),
    f(
        "cuStreamAttachMemAsync",
        &[v(6000, "cuStreamAttachMemAsync")],
        &[v(7000, "cuStreamAttachMemAsync_ptsz")],
    ),
    f(
        "cuStreamBatchMemOp",
        &[
            v(8000, "cuStreamBatchMemOp"),
            v(11070, "cuStreamBatchMemOp_v2"),
        ],
        &[
            v(8000, "cuStreamBatchMemOp_ptsz"),
            v(11070, "cuStreamBatchMemOp_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamBeginCapture",
        &[
            v(10000, "cuStreamBeginCapture"),
            v(10010, "cuStreamBeginCapture_v2"),
        ],
        &[
            v(10000, "cuStreamBeginCapture_ptsz"),
            v(10010, "cuStreamBeginCapture_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamBeginCaptureToGraph",
        &[v(12030, "cuStreamBeginCaptureToGraph")],
        &[v(12030, "cuStreamBeginCaptureToGraph_ptsz")],
    ),
    f(
        "cuStreamCopyAttributes",
        &[v(11000, "cuStreamCopyAttributes")],
        &[v(11000, "cuStreamCopyAttributes_ptsz")],
    ),
    f("cuStreamCreate", &[v(2000, "cuStreamCreate")], &[]),
    f(
        "cuStreamCreateWithPriority",
        &[v(5050, "cuStreamCreateWithPriority")],
        &[],
    ),
    f(
        "cuStreamDestroy",
        &[v(2000, "cuStreamDestroy"), v(4000, "cuStreamDestroy_v2")],
        &[],
    ),
    f(
        "cuStreamEndCapture",
        &[v(10000, "cuStreamEndCapture")],
        &[v(10000, "cuStreamEndCapture_ptsz")],
    ),
    f(
        "cuStreamGetAttribute",
        &[v(11000, "cuStreamGetAttribute")],
        &[v(11000, "cuStreamGetAttribute_ptsz")],
    ),
    f(
        "cuStreamGetCaptureInfo",
        &[
            v(10010, "cuStreamGetCaptureInfo"),
            v(11030, "cuStreamGetCaptureInfo_v2"),
            v(12030, "cuStreamGetCaptureInfo_v3"),
        ],
        &[
            v(10010, "cuStreamGetCaptureInfo_ptsz"),
            v(11030, "cuStreamGetCaptureInfo_v2_ptsz"),
            v(12030, "cuStreamGetCaptureInfo_v3_ptsz"),
        ],
    ),
    f(
        "cuStreamGetCtx",
        &[v(9020, "cuStreamGetCtx"), v(12050, "cuStreamGetCtx_v2")],
        &[
            v(9020, "cuStreamGetCtx_ptsz"),
            v(12050, "cuStreamGetCtx_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamGetDevice",
        &[v(12080, "cuStreamGetDevice")],
        &[v(12080, "cuStreamGetDevice_ptsz")],
    ),
    f(
        "cuStreamGetFlags",
        &[v(5050, "cuStreamGetFlags")],
        &[v(7000, "cuStreamGetFlags_ptsz")],
    ),
    f(
        "cuStreamGetGreenCtx",
        &[v(12040, "cuStreamGetGreenCtx")],
        &[],
    ),
    f(
        "cuStreamGetId",
        &[v(12000, "cuStreamGetId")],
        &[v(12000, "cuStreamGetId_ptsz")],
    ),
    f(
        "cuStreamGetPriority",
        &[v(5050, "cuStreamGetPriority")],
        &[v(7000, "cuStreamGetPriority_ptsz")],
    ),
    f(
        "cuStreamIsCapturing",
        &[v(10000, "cuStreamIsCapturing")],
        &[v(10000, "cuStreamIsCapturing_ptsz")],
    ),
    f(
        "cuStreamQuery",
        &[v(2000, "cuStreamQuery")],
        &[v(7000, "cuStreamQuery_ptsz")],
    ),
    f(
        "cuStreamSetAttribute",
        &[v(11000, "cuStreamSetAttribute")],
        &[v(11000, "cuStreamSetAttribute_ptsz")],
    ),
    f(
        "cuStreamSynchronize",
        &[v(2000, "cuStreamSynchronize")],
        &[v(7000, "cuStreamSynchronize_ptsz")],
    ),
    f(
        "cuStreamUpdateCaptureDependencies",
        &[
            v(11030, "cuStreamUpdateCaptureDependencies"),
            v(12030, "cuStreamUpdateCaptureDependencies_v2"),
        ],
        &[
            v(11030, "cuStreamUpdateCaptureDependencies_ptsz"),
            v(12030, "cuStreamUpdateCaptureDependencies_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamWaitEvent",
        &[v(3020, "cuStreamWaitEvent")],
        &[v(7000, "cuStreamWaitEvent_ptsz")],
    ),
    f(
        "cuStreamWaitValue32",
        &[
            v(8000, "cuStreamWaitValue32"),
            v(11070, "cuStreamWaitValue32_v2"),
        ],
        &[
            v(8000, "cuStreamWaitValue32_ptsz"),
            v(11070, "cuStreamWaitValue32_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamWaitValue64",
        &[
            v(9000, "cuStreamWaitValue64"),
            v(11070, "cuStreamWaitValue64_v2"),
        ],
        &[
            v(9000, "cuStreamWaitValue64_ptsz"),
            v(11070, "cuStreamWaitValue64_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamWriteValue32",
        &[
            v(8000, "cuStreamWriteValue32"),
            v(11070, "cuStreamWriteValue32_v2"),
        ],
        &[
            v(8000, "cuStreamWriteValue32_ptsz"),
            v(11070, "cuStreamWriteValue32_v2_ptsz"),
        ],
    ),
    f(
        "cuStreamWriteValue64",
        &[
            v(9000, "cuStreamWriteValue64"),
            v(11070, "cuStreamWriteValue64_v2"),
        ],
        &[
            v(9000, "cuStreamWriteValue64_ptsz"),
            v(11070, "cuStreamWriteValue64_v2_ptsz"),
        ],
    ),
    f("cuSurfObjectCreate", &[v(5000, "cuSurfObjectCreate")], &[]),
    f(
        "cuSurfObjectDestroy",
        &[v(5000, "cuSurfObjectDestroy")],
        &[],
    ),
    f(
        "cuSurfObjectGetResourceDesc",
        &[v(5000, "cuSurfObjectGetResourceDesc")],
        &[],
    ),
    f("cuSurfRefGetArray", &[v(3000, "cuSurfRefGetArray")], &[]),
    f("cuSurfRefSetArray", &[v(3000, "cuSurfRefSetArray")], &[]),
    f(
        "cuTensorMapEncodeIm2col",
        &[v(12000, "cuTensorMapEncodeIm2col")],
        &[],
    ),
    f(
        "cuTensorMapEncodeIm2colWide",
        &[v(12080, "cuTensorMapEncodeIm2colWide")],
        &[],
    ),
    f(
        "cuTensorMapEncodeTiled",
        &[v(12000, "cuTensorMapEncodeTiled")],
        &[],
    ),
    f(
        "cuTensorMapReplaceAddress",
        &[v(12000, "cuTensorMapReplaceAddress")],
        &[],
    ),
    f("cuTexObjectCreate", &[v(5000, "cuTexObjectCreate")], &[]),
    f("cuTexObjectDestroy", &[v(5000, "cuTexObjectDestroy")], &[]),
    f(
        "cuTexObjectGetResourceDesc",
        &[v(5000, "cuTexObjectGetResourceDesc")],
        &[],
    ),
    f(
        "cuTexObjectGetResourceViewDesc",
        &[v(5000, "cuTexObjectGetResourceViewDesc")],
        &[],
    ),
    f(
        "cuTexObjectGetTextureDesc",
        &[v(5000, "cuTexObjectGetTextureDesc")],
        &[],
    ),
    f("cuTexRefCreate", &[v(2000, "cuTexRefCreate")], &[]),
    f("cuTexRefDestroy", &[v(2000, "cuTexRefDestroy")], &[]),
    f(
        "cuTexRefGetAddress",
        &[
            v(2000, "cuTexRefGetAddress"),
            v(3020, "cuTexRefGetAddress_v2"),
        ],
        &[],
    ),
    f(
        "cuTexRefGetAddressMode",
        &[v(2000, "cuTexRefGetAddressMode")],
        &[],
    ),
    f("cuTexRefGetArray", &[v(2000, "cuTexRefGetArray")], &[]),
    f(
        "cuTexRefGetBorderColor",
        &[v(8000, "cuTexRefGetBorderColor")],
        &[],
    ),
    f(
        "cuTexRefGetFilterMode",
        &[v(2000, "cuTexRefGetFilterMode")],
        &[],
    ),
    f("cuTexRefGetFlags", &[v(2000, "cuTexRefGetFlags")], &[]),
    f("cuTexRefGetFormat", &[v(2000, "cuTexRefGetFormat")], &[]),
    f(
        "cuTexRefGetMaxAnisotropy",
        &[v(5000, "cuTexRefGetMaxAnisotropy")],
        &[],
    ),
    f(
        "cuTexRefGetMipmapFilterMode",
        &[v(5000, "cuTexRefGetMipmapFilterMode")],
        &[],
    ),
    f(
        "cuTexRefGetMipmapLevelBias",
        &[v(5000, "cuTexRefGetMipmapLevelBias")],
        &[],
    ),
    f(
        "cuTexRefGetMipmapLevelClamp",
        &[v(5000, "cuTexRefGetMipmapLevelClamp")],
        &[],
    ),
    f(
        "cuTexRefGetMipmappedArray",
        &[v(5000, "cuTexRefGetMipmappedArray")],
        &[],
    ),
    f(
        "cuTexRefSetAddress",
        &[
            v(2000, "cuTexRefSetAddress"),
            v(3020, "cuTexRefSetAddress_v2"),
        ],
        &[],
    ),
    f(
        "cuTexRefSetAddress2D",
        &[
            v(2020, "cuTexRefSetAddress2D"),
            v(3020, "cuTexRefSetAddress2D_v2"),
            v(4010, "cuTexRefSetAddress2D_v3"),
        ],
        &[],
    ),
    f(
        "cuTexRefSetAddressMode",
        &[v(2000, "cuTexRefSetAddressMode")],
        &[],
    ),
    f("cuTexRefSetArray", &[v(2000, "cuTexRefSetArray")], &[]),
    f(
        "cuTexRefSetBorderColor",
        &[v(8000, "cuTexRefSetBorderColor")],
        &[],
    ),
    f(
        "cuTexRefSetFilterMode",
        &[v(2000, "cuTexRefSetFilterMode")],
        &[],
    ),
    f("cuTexRefSetFlags", &[v(2000, "cuTexRefSetFlags")], &[]),
    f("cuTexRefSetFormat", &[v(2000, "cuTexRefSetFormat")], &[]),
    f(
        "cuTexRefSetMaxAnisotropy",
        &[v(5000, "cuTexRefSetMaxAnisotropy")],
        &[],
    ),
    f(
        "cuTexRefSetMipmapFilterMode",
        &[v(5000, "cuTexRefSetMipmapFilterMode")],
        &[],
    ),
    f(
        "cuTexRefSetMipmapLevelBias",
        &[v(5000, "cuTexRefSetMipmapLevelBias")],
        &[],
    ),
    f(
        "cuTexRefSetMipmapLevelClamp",
        &[v(5000, "cuTexRefSetMipmapLevelClamp")],
        &[],
    ),
    f(
        "cuTexRefSetMipmappedArray",
        &[v(5000, "cuTexRefSetMipmappedArray")],
        &[],
    ),
    f(
        "cuThreadExchangeStreamCaptureMode",
        &[v(10010, "cuThreadExchangeStreamCaptureMode")],
        &[],
    ),
    f("cuUserObjectCreate", &[v(11030, "cuUserObjectCreate")], &[]),
    f(
        "cuUserObjectRelease",
        &[v(11030, "cuUserObjectRelease")],
        &[],
    ),
    f("cuUserObjectRetain", &[v(11030, "cuUserObjectRetain")], &[]),
    f(
        "cuVDPAUCtxCreate",
        &[v(3010, "cuVDPAUCtxCreate"), v(3020, "cuVDPAUCtxCreate_v2")],
        &[],
    ),
    f("cuVDPAUGetDevice", &[v(3010, "cuVDPAUGetDevice")], &[]),
    f(
        "cuWaitExternalSemaphoresAsync",
        &[v(10000, "cuWaitExternalSemaphoresAsync")],
        &[v(10000, "cuWaitExternalSemaphoresAsync_ptsz")],
    ),
];
