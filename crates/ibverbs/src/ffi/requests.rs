//! Constants of queues, requests and completions.

use std::ffi::c_uint;

c_constants! {
    REQUESTS:
    ibv_rx_hash_function_flags: c_uint {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1,
    }
    ibv_rx_hash_fields: c_uint {
        IBV_RX_HASH_SRC_IPV4 = 1, IBV_RX_HASH_DST_IPV4 = 2, IBV_RX_HASH_SRC_IPV6 = 4, IBV_RX_HASH_DST_IPV6 = 8,
        IBV_RX_HASH_SRC_PORT_TCP = 16, IBV_RX_HASH_DST_PORT_TCP = 32, IBV_RX_HASH_SRC_PORT_UDP = 64,
        IBV_RX_HASH_DST_PORT_UDP = 128, IBV_RX_HASH_IPSEC_SPI = 256, IBV_RX_HASH_INNER = 1 << 31,
    }
    ibv_wc_status: c_uint {
        IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_LOC_QP_OP_ERR = 2, IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4, IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_MW_BIND_ERR = 6, IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8, IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11, IBV_WC_RETRY_EXC_ERR = 12, IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14, IBV_WC_REM_INV_RD_REQ_ERR = 15, IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17, IBV_WC_INV_EEC_STATE_ERR = 18, IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20, IBV_WC_GENERAL_ERR = 21, IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    ibv_wc_opcode: c_uint {
        IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RDMA_READ = 2, IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4, IBV_WC_BIND_MW = 5, IBV_WC_LOCAL_INV = 6, IBV_WC_TSO = 7,
        IBV_WC_ATOMIC_WRITE = 9, IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM = 129, IBV_WC_TM_ADD = 130,
        IBV_WC_TM_DEL = 131, IBV_WC_TM_SYNC = 132, IBV_WC_TM_RECV = 133, IBV_WC_TM_NO_TAG = 134,
        IBV_WC_DRIVER1 = 135, IBV_WC_DRIVER2 = 136, IBV_WC_DRIVER3 = 137,
    }
    wc_shift: c_uint {
        IBV_WC_IP_CSUM_OK_SHIFT = 2,
    }
    ibv_create_cq_wc_flags: c_uint {
        IBV_WC_EX_WITH_BYTE_LEN = 1, IBV_WC_EX_WITH_IMM = 2, IBV_WC_EX_WITH_QP_NUM = 4,
        IBV_WC_EX_WITH_SRC_QP = 8, IBV_WC_EX_WITH_SLID = 16, IBV_WC_EX_WITH_SL = 32,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 64, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 128,
        IBV_WC_EX_WITH_CVLAN = 256, IBV_WC_EX_WITH_FLOW_TAG = 512, IBV_WC_EX_WITH_TM_INFO = 1024,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 2048,
    }
    wc_standard_flags: c_uint {
        IBV_WC_STANDARD_FLAGS = 127,
    }
    wc_supported_flags: c_uint {
        IBV_CREATE_CQ_SUP_WC_FLAGS = 4095,
    }
    ibv_wc_flags: c_uint {
        IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 2, IBV_WC_IP_CSUM_OK = 4, IBV_WC_WITH_INV = 8,
        IBV_WC_TM_SYNC_REQ = 16, IBV_WC_TM_MATCH = 32, IBV_WC_TM_DATA_VALID = 64,
    }
    ibv_srq_attr_mask: c_uint {
        IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 2,
    }
    ibv_srq_type: c_uint {
        IBV_SRQT_BASIC = 0, IBV_SRQT_XRC = 1, IBV_SRQT_TM = 2,
    }
    ibv_srq_init_attr_mask: c_uint {
        IBV_SRQ_INIT_ATTR_TYPE = 1, IBV_SRQ_INIT_ATTR_PD = 2, IBV_SRQ_INIT_ATTR_XRCD = 4,
        IBV_SRQ_INIT_ATTR_CQ = 8, IBV_SRQ_INIT_ATTR_TM = 16, IBV_SRQ_INIT_ATTR_RESERVED = 32,
    }
    ibv_wq_type: c_uint {
        IBV_WQT_RQ = 0,
    }
    ibv_wq_init_attr_mask: c_uint {
        IBV_WQ_INIT_ATTR_FLAGS = 1, IBV_WQ_INIT_ATTR_RESERVED = 2,
    }
    ibv_wq_flags: c_uint {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1, IBV_WQ_FLAGS_SCATTER_FCS = 2, IBV_WQ_FLAGS_DELAY_DROP = 4,
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 8, IBV_WQ_FLAGS_RESERVED = 16,
    }
    ibv_wq_state: c_uint {
        IBV_WQS_RESET = 0, IBV_WQS_RDY = 1, IBV_WQS_ERR = 2, IBV_WQS_UNKNOWN = 3,
    }
    ibv_wq_attr_mask: c_uint {
        IBV_WQ_ATTR_STATE = 1, IBV_WQ_ATTR_CURR_STATE = 2, IBV_WQ_ATTR_FLAGS = 4, IBV_WQ_ATTR_RESERVED = 8,
    }
    ibv_ind_table_init_attr_mask: c_uint {
        IBV_CREATE_IND_TABLE_RESERVED = 1,
    }
    ibv_qp_type: c_uint {
        IBV_QPT_RC = 2, IBV_QPT_UC = 3, IBV_QPT_UD = 4, IBV_QPT_RAW_PACKET = 8, IBV_QPT_XRC_SEND = 9,
        IBV_QPT_XRC_RECV = 10, IBV_QPT_DRIVER = 255,
    }
    ibv_qp_init_attr_mask: c_uint {
        IBV_QP_INIT_ATTR_PD = 1, IBV_QP_INIT_ATTR_XRCD = 2, IBV_QP_INIT_ATTR_CREATE_FLAGS = 4,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 8, IBV_QP_INIT_ATTR_IND_TABLE = 16, IBV_QP_INIT_ATTR_RX_HASH = 32,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64,
    }
    ibv_qp_create_flags: c_uint {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 2, IBV_QP_CREATE_SCATTER_FCS = 256,
        IBV_QP_CREATE_CVLAN_STRIPPING = 512, IBV_QP_CREATE_SOURCE_QPN = 1024,
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 2048,
    }
    ibv_qp_create_send_ops_flags: c_uint {
        IBV_QP_EX_WITH_RDMA_WRITE = 1, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 2, IBV_QP_EX_WITH_SEND = 4,
        IBV_QP_EX_WITH_SEND_WITH_IMM = 8, IBV_QP_EX_WITH_RDMA_READ = 16,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 32, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 64,
        IBV_QP_EX_WITH_LOCAL_INV = 128, IBV_QP_EX_WITH_BIND_MW = 256, IBV_QP_EX_WITH_SEND_WITH_INV = 512,
        IBV_QP_EX_WITH_TSO = 1024, IBV_QP_EX_WITH_ATOMIC_WRITE = 4096,
    }
    ibv_qp_open_attr_mask: c_uint {
        IBV_QP_OPEN_ATTR_NUM = 1, IBV_QP_OPEN_ATTR_XRCD = 2, IBV_QP_OPEN_ATTR_CONTEXT = 4,
        IBV_QP_OPEN_ATTR_TYPE = 8, IBV_QP_OPEN_ATTR_RESERVED = 16,
    }
    ibv_qp_attr_mask: c_uint {
        IBV_QP_STATE = 1, IBV_QP_CUR_STATE = 2, IBV_QP_EN_SQD_ASYNC_NOTIFY = 4, IBV_QP_ACCESS_FLAGS = 8,
        IBV_QP_PKEY_INDEX = 16, IBV_QP_PORT = 32, IBV_QP_QKEY = 64, IBV_QP_AV = 128, IBV_QP_PATH_MTU = 256,
        IBV_QP_TIMEOUT = 512, IBV_QP_RETRY_CNT = 1024, IBV_QP_RNR_RETRY = 2048, IBV_QP_RQ_PSN = 4096,
        IBV_QP_MAX_QP_RD_ATOMIC = 8192, IBV_QP_ALT_PATH = 16384, IBV_QP_MIN_RNR_TIMER = 32768,
        IBV_QP_SQ_PSN = 1 << 16, IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_PATH_MIG_STATE = 1 << 18,
        IBV_QP_CAP = 1 << 19, IBV_QP_DEST_QPN = 1 << 20, IBV_QP_RATE_LIMIT = 1 << 25,
    }
    ibv_qp_state: c_uint {
        IBV_QPS_RESET = 0, IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5, IBV_QPS_ERR = 6, IBV_QPS_UNKNOWN = 7,
    }
    ibv_mig_state: c_uint {
        IBV_MIG_MIGRATED = 0, IBV_MIG_REARM = 1, IBV_MIG_ARMED = 2,
    }
    ibv_wr_opcode: c_uint {
        IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2, IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4, IBV_WR_ATOMIC_CMP_AND_SWP = 5, IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7, IBV_WR_BIND_MW = 8, IBV_WR_SEND_WITH_INV = 9, IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11, IBV_WR_ATOMIC_WRITE = 15,
    }
    ibv_send_flags: c_uint {
        IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8,
        IBV_SEND_IP_CSUM = 16,
    }
    ibv_ops_wr_opcode: c_uint {
        IBV_WR_TAG_ADD = 0, IBV_WR_TAG_DEL = 1, IBV_WR_TAG_SYNC = 2,
    }
    ibv_ops_flags: c_uint {
        IBV_OPS_SIGNALED = 1, IBV_OPS_TM_SYNC = 2,
    }
    ibv_cq_attr_mask: c_uint {
        IBV_CQ_ATTR_MODERATE = 1, IBV_CQ_ATTR_RESERVED = 2,
    }
    ibv_cq_init_attr_mask: c_uint {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1, IBV_CQ_INIT_ATTR_MASK_PD = 2,
    }
    ibv_create_cq_attr_flags: c_uint {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2,
    }
}
