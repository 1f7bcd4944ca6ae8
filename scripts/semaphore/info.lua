-- semaphore/info: read how many permits are left.
-- uses     lib/number
-- KEYS[1]  permits_key: permits left
-- returns  number: how many permits are left, 0 when there is no semaphore
local permits_key = KEYS[1]

return read_number(permits_key) or 0
