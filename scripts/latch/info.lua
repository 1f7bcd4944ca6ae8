-- latch/info: read the count.
-- uses     lib/number
-- KEYS[1]  count_key
-- returns  number: the count, 0 when there is no latch
local count_key = KEYS[1]

return read_number(count_key) or 0
