# Reads "figure ROUND WHAT WHO VALUE" lines; writes a table row for each WHAT: medians of both, and the median over the rounds of
# Fulmen's value divided by perftest's in the same round, with the least and the greatest. A round that lacks a value is left out.
function median(list, count,    i, j, swap) {
    for (i = 2; i <= count; i++)
        for (j = i; j > 1 && list[j - 1] > list[j]; j--) {
            swap = list[j]
            list[j] = list[j - 1]
            list[j - 1] = swap
        }
    return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
}

/^figure / && $5 ~ /^[0-9.]+(e[-+]?[0-9]+)?$/ && $5 > 0 {
    if (!($3 in seen)) {
        seen[$3] = 1
        order[++kinds] = $3
    }
    value[$3, $4, $2] = $5
    if ($2 > last) last = $2
}

END {
    for (kind = 1; kind <= kinds; kind++) {
        what = order[kind]
        count = 0
        for (round = 0; round <= last; round++) {
            if (!((what, "fulmen", round) in value && (what, "perftest", round) in value)) continue
            count++
            fulmen[count] = value[what, "fulmen", round]
            perftest[count] = value[what, "perftest", round]
            ratio[count] = fulmen[count] / perftest[count]
        }
        if (!count) {
            printf "| %s | no round has both values | | | 0 |\n", what
            continue
        }
        middle = median(ratio, count)
        split(what, part, "-")
        size = part[2] < 1024 ? part[2] " B" : part[2] / 1024 " KiB"
        if (part[1] == "write")
            printf "| WRITE, bytes a second | %s | %.1f MB/s | %.1f MB/s | **%.2f** (%.2f–%.2f) | %d |\n", size, median(perftest, count) / 1e6, median(fulmen, count) / 1e6, middle, ratio[1], ratio[count], count
        else
            printf "| SEND, half a round trip | %s | %.1f µs | %.1f µs | **%.2f** (%.2f–%.2f) | %d |\n", size, median(perftest, count), median(fulmen, count), middle, ratio[1], ratio[count], count
    }
}
