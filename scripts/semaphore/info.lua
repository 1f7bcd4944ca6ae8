-- semaphore/info: how many permits are left.
-- uses     count
-- KEYS[1]  permits left
-- returns  their number, 0 when there is no semaphore
return count(KEYS[1]) or 0
