-- lock/info: read who holds the lock.
-- uses     lib/holders, lib/primary
-- KEYS[1]  lock_hash
-- KEYS[2]  token_key (optional): fencing token, for a fenced lock only
-- returns  holders {token text}: the holder, if there is one; the last token or ''
local lock_hash, token_key = KEYS[1], KEYS[2]

prefer_primary(lock_hash)
local pttl, holders, foreign_data = holders_of(lock_hash)
if foreign_data then
  return foreign_data
end
return {pttl, holders, token_key and redis.call('get', token_key) or ''}
