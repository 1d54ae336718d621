// The copy of a run of bytes by one group of lanes. The source that includes this has before it a template
// `elements<T>(to, from, count, lane)`, which copies elements of one type.

#pragma once

// Copies bytes in the largest elements that both addresses allow.
DEVICE void bytes(u64 to, u64 from, u32 len, u32 lane) {
    u32 apart = (u32)(to ^ from) | 16;
    u32 width = apart & (0 - apart);
    u32 head = (0 - (u32)to) & (width - 1);
    if (head > len) head = len;
    elements<u8>(to, from, head, lane);
    to += head;
    from += head;
    len -= head;
    u32 whole = len & (0 - width);
    switch (width) {
    case 16: elements<u128>(to, from, whole / 16, lane); break;
    case 8: elements<u64>(to, from, whole / 8, lane); break;
    case 4: elements<u32>(to, from, whole / 4, lane); break;
    case 2: elements<u16>(to, from, whole / 2, lane); break;
    default: elements<u8>(to, from, whole, lane);
    }
    elements<u8>(to + whole, from + whole, len - whole, lane);
}
