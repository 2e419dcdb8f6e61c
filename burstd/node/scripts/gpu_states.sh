# Part of facts.sh and conditions.sh. Of what nvidia-smi knows of each GPU that which tells whether it is well: a line for
# each, values without blanks. $1: seconds within which nvidia-smi must answer. Before Ampere errors are counted as
# double_bit, and before 545 clocks_event_reasons have another name.
gpu_states() {
    timeout -k 1 "$1" nvidia-smi -q -x | head -c 4194304 | awk '
        function value() { sub(/^[^>]*>/, ""); sub(/<.*/, ""); gsub(/[^A-Za-z0-9_.:]/, "_"); return $0 }
        /<process_info>/ { inside = 1; computes = 0 }
        /<\/process_info>/ { inside = 0; if (computes) state = state " process=" pid }
        inside && /<pid>/ { pid = value() }
        inside && /<type>[A-Z+]*C/ { computes = 1 }
        inside && /<process_name>.*(nvidia-cuda-mps|nv-hostengine|dcgm)/ { computes = 0 }
        inside { next } # a name of a process may hold anything
        /<cuda_version>/ { print "cuda=" value() }
        /<gpu id=/ { split($0, word, "\""); state = "gpu_state=" word[2]; part = "" }
        /<(volatile|aggregate|single_bit|double_bit)>/ { sub(/.*</, ""); sub(/>.*/, ""); part = part "/" $0 }
        /<\/(volatile|aggregate|single_bit|double_bit)>/ { sub(/\/[a-z_]*$/, "", part) }
        part == "/volatile" && /uncorrectable[a-z_]*>[0-9]/ { state = state " errors=" value() }
        part == "/volatile/double_bit" && /<total>[0-9]/ { state = state " errors=" value() }
        /<remapped_row_failure>/ { state = state " remap_failed=" value() }
        /<(remapped_row_pending|pending_blacklist|pending_retirement)>/ { state = state " remap_pending=" value() }
        /<gpu_recovery_action>/ { state = state " recovery=" value() }
        /_(hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown)>Active/ {
            sub(/.*_reason_/, ""); sub(/>.*/, ""); state = state " slowed=" $0
        }
        /<current_link_width>/ { state = state " width=" value() }
        /<max_link_width>/ { state = state " max_width=" value() }
        /<\/gpu>/ { print state; fflush() }'
}
