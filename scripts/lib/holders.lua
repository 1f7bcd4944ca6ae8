-- lib/holders: read who holds a lock, for people.
-- uses     lib/holder
-- defines  holders_of(lock_hash): the pttl of the hash, and {id, count, pttl} or {}; or nil, nil
--          and the error for data that is no such lock

local function holders_of(lock_hash)
  local holder, foreign_data = exclusive_holder_of(lock_hash)
  if foreign_data then
    return nil, nil, foreign_data
  end
  local pttl = redis.call('pttl', lock_hash)
  if not holder then
    return pttl, {}
  end
  return pttl, {holder, tonumber(redis.call('hget', lock_hash, holder)) or 0, pttl}
end
