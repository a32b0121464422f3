# Reads "figure ROUND WHAT VALUE" lines; writes rows of medians over the rounds, with the least and the greatest, and of the median
# of what is divided within a round.
function median(list, count,    i, j, swap) {
    for (i = 2; i <= count; i++)
        for (j = i; j > 1 && list[j - 1] > list[j]; j--) {
            swap = list[j]
            list[j] = list[j - 1]
            list[j - 1] = swap
        }
    least = list[1]
    most = list[count]
    return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
}

# A cell for WHAT, or for WHAT divided by ROOF where that is given.
function cell(what, roof,    round, count, list, middle) {
    for (round = 0; round <= last; round++) {
        if (!((what, round) in value) || roof != "" && !((roof, round) in value)) continue
        list[++count] = value[what, round] / (roof == "" ? 1 : value[roof, round])
    }
    if (!count) return "none"
    middle = median(list, count)
    return sprintf("**%.2f** (%.2f–%.2f)", middle, least, most)
}

/^figure / && $4 ~ /^[0-9.]+$/ && $4 > 0 {
    value[$3, $2] = $4
    if ($2 > last) last = $2
}

END {
    rounds = last + 1
    printf "| `ib_send_lat` 64 B, typical, µs | %s | %s | %d |\n", cell("latency"), cell("latency-one"), rounds
    printf "| the same, `--use_old_post_send` | %s | | %d |\n", cell("latency-old"), rounds
    printf "| `ib_write_bw` 64 KiB, mean, GB/s | %s | %s | %d |\n", cell("write"), cell("write-one"), rounds
    printf "| a bare `process_vm_writev` of 64 KiB, GB/s | %s | %s | %d |\n", cell("roof"), cell("roof-one"), rounds
    printf "| `ib_write_bw` / `process_vm_writev`, in a round | %s | %s | %d |\n", cell("write", "roof"), cell("write-one", "roof-one"), rounds
}
