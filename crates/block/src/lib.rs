//! Devices, queues and DMA-able buffers.
