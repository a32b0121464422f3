//! The types and constants of `rdma/rdma_cma.h`, under their own names, which the manual pages explain.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::ffi::*;

c_constants! {
    CM_CONSTANTS:
    rdma_cm_event_type: c_uint {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0, RDMA_CM_EVENT_ADDR_ERROR = 1, RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3, RDMA_CM_EVENT_CONNECT_REQUEST = 4, RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6, RDMA_CM_EVENT_UNREACHABLE = 7, RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9, RDMA_CM_EVENT_DISCONNECTED = 10, RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12, RDMA_CM_EVENT_MULTICAST_ERROR = 13, RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }
    rdma_port_space: c_uint {
        RDMA_PS_IPOIB = 0x0002, RDMA_PS_TCP = 0x0106, RDMA_PS_UDP = 0x0111, RDMA_PS_IB = 0x013f,
    }
    qkeys: u32 {
        RDMA_UDP_QKEY = 0x0123_4567,
    }
    limits: u8 {
        RDMA_MAX_RESP_RES = 255, RDMA_MAX_INIT_DEPTH = 255,
    }
    address_flags: c_int {
        RAI_PASSIVE = 1, RAI_NUMERICHOST = 2, RAI_NOROUTE = 4, RAI_FAMILY = 8,
    }
    option_levels: c_int {
        RDMA_OPTION_ID = 0, RDMA_OPTION_IB = 1,
    }
    options: c_int {
        RDMA_OPTION_ID_TOS = 0, RDMA_OPTION_ID_REUSEADDR = 1, RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }
}

c_types! {
    CM_TYPES:
    struct ibv_sa_path_rec in "struct ibv_sa_path_rec" "" {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    struct rdma_ib_addr in "struct rdma_ib_addr" "" {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: u16,
    }

    struct rdma_addr in "struct rdma_addr" "" {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        addr: rdma_ib_addr,
    }

    struct rdma_route in "struct rdma_route" "" {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    struct rdma_event_channel in "struct rdma_event_channel" "" {
        fd: c_int,
    }

    struct rdma_cm_id in "struct rdma_cm_id" "" {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    struct rdma_conn_param in "struct rdma_conn_param" "" {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    struct rdma_ud_param in "struct rdma_ud_param" "" {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    union rdma_cm_event_param in "struct rdma_cm_event" "param" {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
    }

    struct rdma_cm_event in "struct rdma_cm_event" "" {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event_param,
    }

    struct rdma_addrinfo in "struct rdma_addrinfo" "" {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    struct rdma_cm_join_mc_attr_ex in "struct rdma_cm_join_mc_attr_ex" "" {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::process::Command;

    use super::*;

    #[test]
    fn layouts_and_values_are_those_of_the_header() {
        let mut c = String::from("#include <stddef.h>\n#include <rdma/rdma_cma.h>\n");
        for layout in CM_TYPES {
            let object = if layout.path.is_empty() {
                format!("(*({} *)0)", layout.outer)
            } else {
                format!("(({} *)0)->{}", layout.outer, layout.path)
            };
            let start = if layout.path.is_empty() {
                "0".to_owned()
            } else {
                format!("offsetof({}, {})", layout.outer, layout.path)
            };
            writeln!(c, "_Static_assert(sizeof({object}) == {}, \"size of {object}\");", layout.size).unwrap();
            for (name, offset, size) in layout.members {
                let path = if layout.path.is_empty() { (*name).to_owned() } else { format!("{}.{name}", layout.path) };
                writeln!(
                    c,
                    "_Static_assert(offsetof({}, {path}) - {start} == {offset}, \"offset of {path}\");\n\
                     _Static_assert(sizeof((({} *)0)->{path}) == {size}, \"size of {path}\");",
                    layout.outer, layout.outer
                )
                .unwrap();
            }
        }
        for (name, value) in CM_CONSTANTS {
            writeln!(c, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("layout.c");
        std::fs::write(&source, c).unwrap();
        let compiled = Command::new("cc").arg("-fsyntax-only").arg(&source).output();
        let Ok(compiled) = compiled else {
            println!("SKIPPED: layouts of rdma_cma.h: there is no C compiler (install gcc)");
            return;
        };
        let complaint = String::from_utf8_lossy(&compiled.stderr);
        if complaint.contains("rdma/rdma_cma.h: No such file") {
            println!("SKIPPED: layouts of rdma_cma.h: the header is missing (install librdmacm-dev)");
            return;
        }
        assert!(compiled.status.success(), "{complaint}");
    }
}
