//! Controls that no public header names: questions to the firmware, seen from nvidia-smi and cuBLAS on driver 580.159.
//!
//! Their numbers say nothing on another branch (control 0x20801357 of branch 570 is not that of 580), so only branch 580
//! has them. Those with bit 15 set go to the firmware with no check of the client.

use crate::row::*;

controls! {
    pub(crate) FIRMWARE;
    0x2080_3406 "undocumented 0x20803406" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8159 "undocumented 0x20808159" 332 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8162 "undocumented 0x20808162" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852a "undocumented 0x2080852a" 1784 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852b "undocumented 0x2080852b" 2836 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852e "undocumented 0x2080852e" 528 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852f "undocumented 0x2080852f" 776 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8536 "undocumented 0x20808536" 1812 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_853a "undocumented 0x2080853a" 1456 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8542 "undocumented 0x20808542" 504 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8546 "undocumented 0x20808546" 24 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9001 "undocumented 0x20809001" 8 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9009 "undocumented 0x20809009" 8 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9019 "undocumented 0x20809019" 10800 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9038 "undocumented 0x20809038" 4 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9064 "undocumented 0x20809064" 520 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a026 "undocumented 0x2080a026" 532 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a060 "undocumented 0x2080a060" 28 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a06e "undocumented 0x2080a06e" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a06f "undocumented 0x2080a06f" 4 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a080 "undocumented 0x2080a080" 52 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a084 "undocumented 0x2080a084" 4 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a612 "undocumented 0x2080a612" 11680 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a618 "undocumented 0x2080a618" 8620 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2081_0108 "undocumented 0x20810108" 992 EXECUTE
        "a question to the firmware, undocumented; size as seen from driver 580.159";
    0x2081_0110 "undocumented 0x20810110" 1 EXECUTE
        "a question to the firmware, undocumented; size as seen from driver 580.159";
}
